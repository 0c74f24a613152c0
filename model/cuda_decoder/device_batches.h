// The micro-batches of a pass, on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/data/micro_batch.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// Addresses on the device: [tokens] each, but for the runs (cuda/ops.h).
struct DeviceBatch {
  int64_t tokens = 0;
  const int32_t* token = nullptr;
  const int32_t* target = nullptr;
  const int32_t* position = nullptr;  // its row in the tables of positions (rope.h)
  const int32_t* segment_begin = nullptr;
  const int32_t* segment_end = nullptr;
  cuda::TokenRuns token_runs;
  cuda::TokenRuns position_runs;
};

// Owned by one thread.
class DeviceBatches {
 public:
  // For passes of at most `tokens` in at most `num_batches` micro-batches. The device, its budget
  // and the host's outlive it. OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<DeviceBatches>> Create(int64_t tokens, int64_t num_batches,
                                                               Device* device,
                                                               MemoryBudget* device_budget,
                                                               MemoryBudget* host_budget);
  // Bytes that Create charges: the same on the device and on the host, there in whole pages.
  static int64_t BytesFor(int64_t tokens, int64_t num_batches);

  // Copies the micro-batches on `stream`, after the copies of the pass before. Requires: no more of
  // them than at creation.
  absl::Status Upload(std::span<const MicroBatch> batches, const RopeConfig& rope, Stream& stream);
  const DeviceBatch& operator[](size_t batch) const { return batches_[batch]; }

 private:
  DeviceBatches() = default;
  int32_t* Place(int64_t count);
  template <typename Values>
  const int32_t* Add(const Values& values);
  cuda::TokenRuns AddRuns(std::span<const int32_t> values);

  DeviceAllocation memory_;
  HostBuffer staging_;
  std::unique_ptr<Event> uploaded_;  // the pass before
  int64_t used_ = 0;                 // elements of both
  std::vector<DeviceBatch> batches_;
};

}  // namespace forebay
