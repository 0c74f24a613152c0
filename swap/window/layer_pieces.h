// A buffer of the swapper's window that has two pieces of a layer at a time.
//
//   Get(p): wait for p, verify it -> read p + 1 into the slot of p - 1, which nobody uses any more
//
// An update passes all pieces through it before the layer is lent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/step/held_pieces.h"
#include "forebay/step/param_source.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/piece_cut.h"

namespace forebay {

class TileUpdater;

// Used by the window's thread, and while the layer is lent, by the caller's.
class LayerPieces final : public WeightPieces {
 public:
  // `memory`: two pieces; it and `store` must outlive this.
  LayerPieces(TensorStore* store, int64_t piece_elems, std::span<std::byte> memory);
  ~LayerPieces() override { Drop(); }

  // Forgets what it has, and starts to read the first pieces of a layer.
  void Start(int layer, IoClass io_class);
  // Waits for the reads that are under way, and forgets all.
  void Drop();
  // Updates and writes piece by piece. No write is under way when it returns.
  absl::Status Update(TileUpdater* updater);

  int num_pieces() const override { return cut_.num_pieces; }
  int64_t piece_elems() const override { return cut_.piece_elems; }
  int64_t num_elems() const override { return store_->tiles().layer_elems(layer_); }
  // StorageError, CorruptError. The first stays.
  absl::StatusOr<LayerWeights> Get(int piece) override;
  // That error. Used by the caller's thread.
  const absl::Status& failure() const { return failure_; }

  // Seconds that Get has waited.
  double waited_s() const { return waited_s_; }

 private:
  struct Slot {
    std::unique_ptr<IoOp[]> ops;  // one for each tile
    int num_reads = 0;            // that were started and not waited for
  };

  absl::Status UpdatePiece(int piece, TileUpdater* updater);
  void StartRead(int piece, IoClass io_class);
  absl::Status FinishRead(int piece);
  void DropSlot(int slot);
  int FirstTile(int piece) const { return cut_.FirstTile(store_->tiles(), layer_, piece); }
  std::span<std::byte> MemoryOf(int piece) const;

  TensorStore* const store_;
  const std::span<std::byte> memory_;
  const int64_t piece_elems_;
  int layer_ = -1;
  PieceCut cut_;
  HeldPieces held_;
  std::array<Slot, kPiecesOfBuffer> slots_;
  absl::Status failure_;  // of Get
  double waited_s_ = 0;
};

}  // namespace forebay
