// The raw tensors of a training run (base/tensor_spec.h): in RAM as a whole, and written with every
// commit. They are for a module's buffers, not for state that is as large as its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// The values of the step in progress, and beside them those of the released step, which its commit
// writes. Owned by one thread. Nothing is allocated after Create.
class RawTensors {
 public:
  // With what is committed. `store` and `budget` outlive this. OutOfMemoryError, StorageError,
  // CorruptError.
  static absl::StatusOr<std::unique_ptr<RawTensors>> Create(TensorStore* store,
                                                            MemoryBudget* budget);
  // The memory that Create charges.
  static int64_t ChargedBytes(const TileMap& tiles);

  // All bytes of a raw tensor, to read and to change. Requires: a raw one.
  std::span<std::byte> Of(const TensorSpec& tensor) const;

  // The values are those of the released step from here on.
  void Release();
  // They are again what the released step left.
  void Abandon();
  // Whether the released values differ from those of the last Write, or Create.
  bool ReleasedHaveChanged() const { return has_changed_; }
  // Whether the values differ from the released ones.
  bool HaveChanged() const;

  // Writes the released values: for the commit of that step. StorageError.
  absl::Status Write();
  // Writes what is committed of all other tiles again, where the store has another place for it: so
  // that a step which changed raw tensors alone can be committed. Requires: nothing was written
  // since the last commit. StorageError, CorruptError.
  absl::Status CopyForward();

 private:
  explicit RawTensors(TensorStore* store) : store_(store) {}
  absl::Status Read();
  std::span<std::byte> TileIn(std::span<std::byte> values, int tile) const;

  TensorStore* const store_;
  HostBuffer values_;           // the raw tiles one after another
  TransferBuffer released_;     // the same
  TransferBuffer copied_tile_;  // of CopyForward
  bool has_changed_ = false;
};

}  // namespace forebay
