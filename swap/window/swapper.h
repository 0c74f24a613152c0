// The window of layers in host memory over the store: due updates are applied to layers on their
// way in. Layers that the placement keeps in RAM are lent without a read.
//
// So the forward pass of step t+1 finds layer l updated by step t, and the update's I/O overlaps
// the computation of the layers before it (a lazy update).
//
// A layer that is too large for memory is lent in pieces (layer_pieces.h).
//
// Not for: which layer comes when, and what gives way to it (step/layer_window.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/layer_window.h"
#include "forebay/step/param_source.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/window/window.h"

namespace forebay {

class LayerPieces;

// The optimizer updates a layer on its way in. Called on the window's thread only.
class TileUpdater {
 public:
  virtual ~TileUpdater() = default;
  // Whether `layer` has a finished gradient whose update has been released (step scalars known) and
  // not applied.
  // A layer's update becomes due before its next access is announced (see Swapper::Expect).
  virtual bool UpdateIsDue(int layer) const = 0;
  // Applies the update to `weights` (the layer's flat vector, in the store's weight dtype) and
  // starts writing weights and state; what lives in RAM may be left for WriteDeferred. On return
  // `weights` is final; it stays borrowed for the write-back until AwaitWriteBack(layer) returns.
  virtual absl::Status UpdateLayer(int layer, std::span<std::byte> weights) = 0;
  // The same of a layer that is not in memory as a whole: of its tiles [first_tile, end_tile),
  // whose weights these are. They come in order, and the last ends the layer's update.
  virtual absl::Status UpdateTiles(int layer, int first_tile, int end_tile,
                                   std::span<std::byte> weights) = 0;
  // Starts writing what was left of a layer that lives in RAM, in `weights`.
  virtual absl::Status WriteDeferred(int layer, std::span<std::byte> weights) = 0;
  virtual absl::Status AwaitWriteBack(int layer) = 0;
  virtual absl::Status AwaitWriteBackOfTiles(int first_tile, int end_tile) = 0;
  // Between updates, while the window's thread has nothing to do: goes on with what the next ones
  // need, where memory for it became free meanwhile. Whether more may become free soon.
  virtual bool ReadFurther() { return false; }
};

class Swapper final : private LayerFiller {
 public:
  ~Swapper() override;
  // `updater` may be nullptr (evaluation). `device`: layers will be copied to it. Host-resident
  // weights are read from the store here. Everything pointed to must outlive the swapper. The
  // errors of those reads, OutOfMemoryError, EnvironmentError where no thread can be had;
  // UsageError where a raw layer (base/tensor_spec.h) is not behind all that are streamed: the
  // window knows those alone.
  static absl::StatusOr<std::unique_ptr<Swapper>> Create(const WindowOptions& options,
                                                         const Placement& placement,
                                                         TensorStore* store, TileUpdater* updater,
                                                         MemoryBudget* budget,
                                                         Device* device = nullptr);
  // What Create charges for the window, whatever the placement; resident layers come on top
  // (Placement::host_weight_bytes).
  static int64_t WindowBytes(const WindowOptions& options, const TileMap& tiles);

  // As ParamSource's (step/param_source.h), which LayerSession implements with this class. Used by
  // one thread.
  void Expect(std::span<const int> layers) { window_->Expect(layers); }
  // The first error of any read, update, write-back or device; it stays. UsageError, with nothing
  // changed, for another layer than the next that was announced, and where the caller holds every
  // buffer that the layer could take.
  absl::StatusOr<std::span<const std::byte>> Acquire(int layer);
  // Acquire gave nothing of a layer that is not in memory as a whole: these have it, while it is
  // lent. nullptr: it is whole.
  WeightPieces* PiecesOf(int layer) const { return lent_pieces_[static_cast<size_t>(layer)]; }
  // Whether Acquire of the next that was announced would return at once, with an error too.
  bool NextIsReady() const { return window_->NextIsReady(); }
  // `done`: as WeightsLease::Release has it.
  void Release(int layer, Event* done = nullptr) { window_->Release(layer, done); }

  // Applies every due update that no announced access applies, has all layers that live in RAM
  // written, waits for all write-backs and for the staging thread to be idle. After it the store
  // holds the weights of the finished step. `meanwhile`: as of LayerWindow::Between.
  absl::Status ApplyAllUpdates(absl::FunctionRef<void()> meanwhile = [] {});

  // Layers that the placement has updated outside of the window (Placement::UpdateTimeOf) were, and
  // all of that is written: the window no longer holds them, but for those that live in RAM, which
  // were updated there. Requires: every announced access was acquired and released.
  void ForgetUpdatedOutside();
  // By layer, the memory of those that live in RAM; empty: it does not.
  std::vector<std::span<std::byte>> ResidentWeights() const;
  // Reads a layer that lives in RAM again: what was made of it there is undone in the store. The
  // error of the read. Requires: it is not lent.
  absl::Status RestoreResident(int layer);

  // Abandons announced accesses that were not acquired (a stop in mid-step).
  void CancelExpected() { window_->CancelExpected(); }

  // The waits for pieces too.
  WindowStats stats() const;

 private:
  // The memory of a buffer.
  struct Backing {
    TransferBuffer memory;
    std::unique_ptr<IoOp[]> ops;  // one for each tile of the layer that is being read
    int num_reads = 0;            // in flight
    bool in_write_back = false;   // AwaitWriteBack is still to be called
    // Behind the memory, so that its reads end first. nullptr: layers are whole in it.
    std::unique_ptr<LayerPieces> pieces;
  };

  Swapper(const Placement& placement, TensorStore* store, TileUpdater* updater);
  absl::Status MakeBuffers(const WindowOptions& options, const WindowBuffers& buffers,
                           MemoryBudget* budget, Device* device);
  absl::Status ReadResidentLayers(const WindowBuffers& buffers);

  void StartRead(int buffer, int layer, bool urgent) override;
  absl::Status FinishRead(int buffer, int layer, bool is_used) override;
  bool UpdateIsDue(int layer) const override;
  bool ReadFurther() override { return updater_ != nullptr && updater_->ReadFurther(); }
  absl::Status Update(int buffer, int layer) override;
  absl::Status FinishWriteBack(int buffer, int layer) override;

  absl::Status StageDueLayers();
  absl::Status WriteResidentLayers();
  std::span<std::byte> WeightsIn(int buffer, int layer) const;
  // nullptr: it is whole there.
  LayerPieces* PiecesIn(int buffer, int layer) const;
  // The first that a caller met in a piece.
  absl::Status FailureOfPieces() const;
  absl::Status AtLayer(const absl::Status& status, std::string_view doing, int layer) const;

  TensorStore* const store_;
  TileUpdater* const updater_;
  const std::vector<UpdateTime> update_times_;  // as Placement has them
  std::vector<bool> in_pieces_;                 // by layer
  std::vector<WeightPieces*> lent_pieces_;      // by layer; the caller's
  std::vector<Backing> backing_;                // by buffer
  std::vector<int> due_;                        // of ApplyAllUpdates
  std::unique_ptr<LayerWindow> window_;         // the last: its thread ends first
};

}  // namespace forebay
