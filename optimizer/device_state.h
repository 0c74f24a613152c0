// The optimizer's state of tiles that live on a device, and the buffers through which it comes from
// the store, is updated there and goes back. The update itself is the caller's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/optimizer/tile_writes.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/tiles/placement.h"

namespace forebay {

// Owned by one thread at a time. A buffer in RAM waits for nothing but the write that was started
// from it before, so waiting ends.
class DeviceState {
 public:
  // Loads the tiles that `placement` has on the device, from what `store` has newest. Charges
  // WorkBytes() and Placement::device_state_bytes to the device's budget, and ChargedBytes() to
  // `budget`. All that is pointed to must outlive it. OutOfMemoryError, EnvironmentError,
  // StorageError, CorruptError.
  static absl::StatusOr<std::unique_ptr<DeviceState>> Create(Device* device, DType gradient_dtype,
                                                             const Placement& placement,
                                                             TensorStore* store, TileWrites* writes,
                                                             MemoryBudget* device_budget,
                                                             MemoryBudget* budget);

  // Beside the state itself (Placement::device_state_bytes): weights and gradient of a tile.
  static int64_t WorkBytes(const TileMap& tiles, DType gradient_dtype);
  static int64_t ChargedBytes(const TileMap& tiles);

  // Reads the tiles that live there, of those in [first_tile, end_tile), from the store.
  // StorageError, CorruptError, EnvironmentError.
  absl::Status Load(int first_tile, int end_tile);

  // Addresses on the device, each of all bytes of a tile.
  struct Planes {
    std::span<std::byte> weights;
    std::span<std::byte> state;
    std::span<std::byte> gradient;
  };
  // Begins to bring weights and gradient of `tile` there, which are borrowed until Finish or
  // CopyBack, or after an error until stream() is awaited. Work that stream() is given next finds
  // them. Requires: `tile` lives there.
  absl::StatusOr<Planes> Begin(int tile, std::span<const std::byte> weights,
                               std::span<const std::byte> gradient);
  Stream& stream() { return *stream_; }
  // Brings the weights back to `weights`, behind all that stream() was given, and waits for it.
  absl::Status Finish(std::span<std::byte> weights);
  // Brings the tile's state to RAM, for a write, and weights, where a span for them is given. Waits
  // for both. The state is the caller's until the write of this tile has ended, which has to be the
  // next that begins.
  absl::StatusOr<std::span<std::byte>> CopyBack(int tile, std::span<std::byte> weights = {});

 private:
  // In RAM.
  struct Landing {
    TransferBuffer memory;
    IoOp read;
    int read_tile = -1;     // that is read into it; -1: none is
    int written_tile = -1;  // whose write may still borrow it; -1: none
  };
  DeviceState(DType gradient_dtype, TensorStore* store, TileWrites* writes)
      : gradient_dtype_(gradient_dtype), store_(store), tiles_(store->tiles()), writes_(writes) {}

  std::span<std::byte> StateOf(int tile) const;
  absl::Status MakeMemory(Device* device, const Placement& placement, MemoryBudget* device_budget,
                          MemoryBudget* budget);
  // The buffer that was used longest ago, when it is free.
  absl::StatusOr<Landing*> NextLanding();
  // Brings what is read into it, if anything is, to the device.
  absl::Status TakeRead(Landing& landing);

  const DType gradient_dtype_;
  TensorStore* const store_;
  const TileMap& tiles_;
  TileWrites* const writes_;
  // In this order: the stream ends before the memory that it uses.
  DeviceAllocation on_device_;         // weights and gradient of a tile, then the state
  std::vector<int64_t> offset_bytes_;  // by tile, in on_device_; -1: it does not live there
  // One is filled while others are written from.
  std::array<Landing, 4> landings_;
  size_t next_landing_ = 0;
  std::unique_ptr<Stream> stream_;
};

}  // namespace forebay
