// The keys and values of sequences: on the device, but for those of the first blocks where they are
// to lie in RAM. Those come to one of two places on the device for the time that their block
// computes, over a stream of their own; the next block's come meanwhile. What the block adds goes
// to both. Private to this folder.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"

namespace forebay {

struct SequenceCacheShape {
  static constexpr int kNumPlaces = 2;

  int num_blocks = 0;
  int num_in_ram = 0;       // the first so many
  int64_t row_bytes = 0;    // of a token's keys; values take as many
  int64_t block_bytes = 0;  // of all rows' keys of a block, at least

  int num_places() const { return num_in_ram < kNumPlaces ? num_in_ram : kNumPlaces; }
  int64_t DeviceBytes() const { return 2 * (num_blocks - num_in_ram + num_places()) * block_bytes; }
  int64_t RamBytes() const { return 2 * num_in_ram * block_bytes; }
};

// Owned by one thread.
class SequenceCache {
 public:
  struct Rows {
    int64_t first = 0;
    int64_t count = 0;
  };
  struct OfBlock {  // on the device
    std::byte* keys = nullptr;
    std::byte* values = nullptr;
  };

  // `compute`: the stream that reads and fills what Use gives. All that is pointed to outlives
  // this. OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<SequenceCache>> Create(const SequenceCacheShape& shape,
                                                               Device* device, Stream* compute,
                                                               MemoryBudget* device_budget,
                                                               MemoryBudget* host_budget);

  // A pass over all blocks begins, which reads the rows `cached` and fills the rows `added`. One
  // that did not come to its end may have gone before.
  absl::Status BeginPass(std::vector<Rows> cached, std::vector<Rows> added);
  // For what is enqueued from now on, until End. Blocks come in ascending order.
  absl::StatusOr<OfBlock> Use(int block);
  // Requires: the rows that are added were enqueued.
  absl::Status End(int block);

 private:
  struct Place {
    std::unique_ptr<Event> is_free, is_there;
  };

  SequenceCache(const SequenceCacheShape& shape, Stream* compute)
      : shape_(shape), compute_(*compute) {}
  OfBlock OnDevice(int block) const;
  // Copies the rows of a block, of keys and of values: copy(in RAM, on the device).
  template <typename Copy>
  absl::Status ForRows(int block, std::span<const Rows> rows, const Copy& copy) const;
  absl::Status Bring(int block);

  const SequenceCacheShape shape_;
  Stream& compute_;
  // In this order: the stream ends before what its work uses.
  DeviceAllocation on_device_;  // the places, then the blocks that are not in RAM
  HostBuffer in_ram_;           // by block
  std::array<Place, SequenceCacheShape::kNumPlaces> places_;
  std::unique_ptr<Stream> copies_;
  std::vector<Rows> cached_, added_;
};

}  // namespace forebay
