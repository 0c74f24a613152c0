// Activations that wait in the scratch area of the store for their backward pass.
//
// Not for: which do (step/step_schedule.h), or what is in them. A crash loses them, with the pass
// that they are of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/process/parallel.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/activation_storage.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/tiles/stripes.h"

namespace forebay {

// How much memory and disk they take. The disk's part of the plan's scratch area lies behind that
// of the gradients. Every stripe has its share of each activation, so that all disks move it
// together. Pure.
struct SpilledActivationsShape {
  int num_spilled = 0;           // the first so many layers'
  int num_buffers = 0;           // in memory, of `activation_bytes` each
  int64_t activation_bytes = 0;  // whole blocks

  int64_t MemoryBytes() const { return num_buffers * activation_bytes; }
  // Each stripe's bytes of one activation.
  StripeBytes StripeShares(const StripeWeights& weights) const;
  // The size of the area.
  StripeBytes AreaBytes(const StripeWeights& weights) const;

  friend bool operator==(const SpilledActivationsShape&, const SpilledActivationsShape&) = default;
};

// A place is a layer here: no pass in segments spills to a disk. Owned by one thread. Allocates
// nothing after its creation.
class SpilledActivations final : public ActivationStorage {
 public:
  // `area_begins`: by stripe, where their part of the scratch area begins, which is as large as
  // AreaBytes has it. `pool`: takes checksums. `device`: pins the buffers for its copies; nullptr:
  // the host computes in them. Everything pointed to must outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<SpilledActivations>> Create(
      const SpilledActivationsShape& shape, StripeBytes area_begins, TensorStore* store,
      MemoryBudget* budget, ThreadPool* pool, Device* device = nullptr);
  ~SpilledActivations() override;

  // The largest: long enough for a disk, short enough that all threads take checksums.
  static constexpr int64_t kMostTransferBytes = int64_t{4} << 20;

  std::span<std::byte> buffers() const override { return memory_.bytes(); }
  int num_buffers() const override { return shape_.num_buffers; }
  void StartWrite(int layer) override { Start(IoKind::kWrite, layer); }
  void StartRead(int layer) override { Start(IoKind::kRead, layer); }
  absl::Status Await(int layer) override;
  void Abandon() override;

  // The time that Await took.
  double wait_s() const { return wait_s_; }

 private:
  // A part of every activation, with a transfer and a checksum of its own.
  struct Piece {
    int stripe = 0;
    int64_t offset_bytes = 0;  // in the activation
    int64_t size_bytes = 0;
    int64_t area_offset_bytes = 0;  // of the first layer's
  };
  // The transfer that is under way in a buffer.
  struct Transfer {
    IoKind kind = IoKind::kRead;
    int layer = -1;  // -1: nothing is
  };

  SpilledActivations(const SpilledActivationsShape& shape, const StripeBytes& area_begins,
                     TensorStore* store, ThreadPool* pool);
  void Start(IoKind kind, int layer);
  // Takes a checksum of each piece in the layer's buffer.
  void TakeChecksums(int layer, std::span<uint64_t> checksums) const;
  absl::Status Verify(int layer);
  std::span<std::byte> BytesOf(int layer, const Piece& piece) const;
  int64_t AreaOffset(int layer, const Piece& piece) const {
    return piece.area_offset_bytes + layer * shares_[piece.stripe];
  }
  std::span<IoOp> OpsOf(int layer) {
    return std::span(ops_).subspan(layer % shape_.num_buffers * pieces_.size(), pieces_.size());
  }
  std::span<uint64_t> SealsOf(int layer) {
    return std::span(seals_).subspan(layer * pieces_.size(), pieces_.size());
  }

  const SpilledActivationsShape shape_;
  TensorStore* const store_;
  ThreadPool* const pool_;
  const StripeBytes shares_;
  std::vector<Piece> pieces_;
  TransferBuffer memory_;
  std::vector<Transfer> transfers_;  // by buffer
  std::vector<IoOp> ops_;            // by buffer and piece
  std::vector<uint64_t> seals_;      // checksums of what was written, by layer and piece
  std::vector<uint64_t> checksums_;  // of what was read last, by piece
  std::vector<uint8_t> is_written_;  // by layer: in this pass, and not read
  double wait_s_ = 0;
};

}  // namespace forebay
