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
#include "forebay/base/trace.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/optimizer/tile_writes.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/tiles/placement.h"

namespace forebay {

//
//   to_device_  weights, gradient of 0 | of 1         | of 2
//   stream_                              update of 0   | of 1
//   to_host_                                            weights, state of 0 | of 1
//
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

  // Beside the state itself (Placement::device_state_bytes): weights and gradients of two tiles.
  static int64_t WorkBytes(const TileMap& tiles, DType gradient_dtype);
  // The same where tiles have so many bytes of weights and elements at most.
  static int64_t WorkBytes(int64_t weight_bytes, int64_t num_elems, DType gradient_dtype);
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
  // A tile's update: Begin, what stream() is given then, End, and Await. Its copies are made beside
  // the update of the tile before, which may be awaited as late as when this has ended.
  //
  // Begins to bring weights and gradient of `tile` there, which are borrowed: the gradient until
  // AwaitInputs, both until Await, or after an error until AwaitAll. Requires: `tile` lives there,
  // and one other at most is not awaited.
  absl::StatusOr<Planes> Begin(int tile, std::span<const std::byte> weights,
                               std::span<const std::byte> gradient);
  // Work that it is given between Begin and End finds the planes.
  Stream& stream() { return *stream_; }
  // Waits for what the tile that began last is given.
  absl::Status AwaitInputs();
  // Begins to bring weights to `weights`, behind all that stream() was given, and the state to RAM
  // if it is to be written (`with_state`): it will lie in what is returned, and is the caller's
  // until the write of this tile has ended, which has to begin before three more tiles do.
  // Requires: `tile` began last.
  absl::StatusOr<std::span<std::byte>> End(int tile, std::span<std::byte> weights, bool with_state);
  // All of the oldest that has ended, and was not awaited.
  absl::Status Await();
  // Nothing borrows anything when it returns, whatever failed.
  void AwaitAll();

  // Begins to bring the tile's state to RAM, for a write, as End does; it is there when
  // AwaitCopyBack returns. Requires: no tile is being updated; three others at most whose writes
  // did not begin.
  absl::StatusOr<std::span<std::byte>> CopyBack(int tile);
  absl::Status AwaitCopyBack(int tile);

 private:
  // In RAM.
  struct Landing {
    TransferBuffer memory;
    IoOp read;
    int read_tile = -1;     // that is read into it; -1: none is
    int written_tile = -1;  // whose write may still borrow it; -1: none
    std::unique_ptr<Event> is_there;
  };
  // On the device, of a tile that is being updated.
  struct Place {
    std::byte* weights = nullptr;
    std::byte* gradient = nullptr;
    std::unique_ptr<Event> is_there, is_updated, is_back;
  };
  static constexpr int64_t kNumPlaces = 2;
  DeviceState(DType gradient_dtype, TensorStore* store, TileWrites* writes)
      : gradient_dtype_(gradient_dtype), store_(store), tiles_(store->tiles()), writes_(writes) {}

  Place& PlaceAt(int64_t number) { return places_[static_cast<size_t>(number % kNumPlaces)]; }
  std::span<std::byte> StateOf(int tile) const;
  TraceScope::Of ScopeOf(int tile) const {
    return {.layer = tiles_.tiles()[static_cast<size_t>(tile)].layer, .tile = tile};
  }
  absl::Status MakeMemory(Device* device, const Placement& placement, MemoryBudget* device_budget,
                          MemoryBudget* budget);
  absl::Status MakePlaces(Device* device);
  // The buffer that was used longest ago, when it is free.
  absl::StatusOr<Landing*> NextLanding();
  // Brings what is read into it, if anything is, to the device.
  absl::Status TakeRead(Landing& landing);

  const DType gradient_dtype_;
  TensorStore* const store_;
  const TileMap& tiles_;
  TileWrites* const writes_;
  // In this order: streams end before the memory that they use, and what they wait for.
  DeviceAllocation on_device_;         // the places, then the state
  std::vector<int64_t> offset_bytes_;  // by tile, in on_device_; -1: it does not live there
  std::array<Place, kNumPlaces> places_;
  int64_t num_begun_ = 0;  // tiles, since the beginning
  int64_t num_awaited_ = 0;
  // One is filled while others are written from.
  std::array<Landing, 4> landings_;
  size_t next_landing_ = 0;
  std::unique_ptr<Stream> to_device_, stream_, to_host_;
};

}  // namespace forebay
