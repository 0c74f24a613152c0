// A GPU to time work on: memory with random contents, and the median of repeated runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/cuda/ops.h"

namespace forebay {

struct BenchSettings {
  bool tiny = false;   // shapes and times for a GPU that is emulated
  int repeats = 0;     // of which the median counts
  double seconds = 0;  // that a repeat takes at least: short work is enqueued several times
};
BenchSettings FullBench();
BenchSettings TinyBench();

// Owned by one thread. What it makes lives as long as it does.
class BenchGpu {
 public:
  // EnvironmentError: no GPU. `scratch_bytes`: of the operators' context.
  static absl::StatusOr<std::unique_ptr<BenchGpu>> Create(const BenchSettings& settings,
                                                          int64_t scratch_bytes);

  const BenchSettings& settings() const { return settings_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  cuda::Context& context() { return *context_; }

  // Numbers from -1 to 1: a multiplication of zeros takes less power, and so less time.
  absl::StatusOr<void*> Random(int64_t count, DType dtype);
  absl::StatusOr<void*> Zeros(int64_t size_bytes);
  absl::StatusOr<int32_t*> Indices(const std::vector<int32_t>& values);

  // The time that what `enqueue` puts on the stream takes, by the GPU's own clock.
  absl::StatusOr<double> MedianSeconds(const std::function<absl::Status()>& enqueue);

 private:
  explicit BenchGpu(const BenchSettings& settings) : settings_(settings) {}
  absl::StatusOr<double> SecondsOf(const std::function<absl::Status()>& enqueue, int times);
  absl::Status Fill(void* to, int64_t size_bytes, const std::vector<std::byte>& pattern);

  const BenchSettings settings_;
  MemoryBudget budget_{int64_t{1} << 50};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_, end_;
  std::vector<DeviceBuffer> buffers_;
  std::unique_ptr<cuda::Context> context_;
};

// Requires: not empty.
double MedianOf(std::vector<double> values);

}  // namespace forebay
