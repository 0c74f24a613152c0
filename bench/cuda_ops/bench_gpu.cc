#include "forebay/bench/cuda_ops/bench_gpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int64_t kPatternElems = int64_t{1} << 20;
constexpr int kMostTimes = 1000;

std::vector<std::byte> RandomPattern(int64_t count, DType dtype) {
  const CounterRng rng(7);
  std::vector<std::byte> bytes(static_cast<size_t>(count * SizeOf(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(2 * rng.Uniform(static_cast<uint64_t>(i)) - 1);
    const uint16_t half = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
    std::byte* const to = bytes.data() + i * SizeOf(dtype);
    if (dtype == DType::kF32) {
      std::memcpy(to, &value, sizeof(value));
    } else {
      std::memcpy(to, &half, sizeof(half));
    }
  }
  return bytes;
}

}  // namespace

BenchSettings FullBench() {
  return {.tiny = false, .repeats = 15, .seconds = 5e-3};
}
BenchSettings TinyBench() {
  return {.tiny = true, .repeats = 1, .seconds = 0};
}

double MedianOf(std::vector<double> values) {
  FOREBAY_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

absl::StatusOr<std::unique_ptr<BenchGpu>> BenchGpu::Create(const BenchSettings& settings,
                                                           int64_t scratch_bytes) {
  std::unique_ptr<BenchGpu> gpu(new BenchGpu(settings));
  FOREBAY_ASSIGN_OR_RETURN(gpu->device_, CreateCudaDevice(0));
  FOREBAY_ASSIGN_OR_RETURN(gpu->stream_, gpu->device_->CreateStream());
  FOREBAY_ASSIGN_OR_RETURN(gpu->begin_, gpu->device_->CreateTimedEvent());
  FOREBAY_ASSIGN_OR_RETURN(gpu->end_, gpu->device_->CreateTimedEvent());
  FOREBAY_ASSIGN_OR_RETURN(
      gpu->context_,
      cuda::Context::Create(gpu->device_.get(), gpu->stream_.get(), &gpu->budget_,
                            {.dtype = DType::kBF16, .scratch_bytes = scratch_bytes}));
  return gpu;
}

absl::Status BenchGpu::Fill(void* to, int64_t size_bytes, const std::vector<std::byte>& pattern) {
  const auto pattern_bytes = static_cast<int64_t>(pattern.size());
  auto* const bytes = static_cast<std::byte*>(to);
  for (int64_t at = 0; at < size_bytes; at += pattern_bytes) {
    const auto count = static_cast<size_t>(std::min(pattern_bytes, size_bytes - at));
    FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(bytes + at, std::span(pattern).first(count)));
  }
  return stream_->Await();
}

absl::StatusOr<void*> BenchGpu::Random(int64_t count, DType dtype) {
  const int64_t size_bytes = count * SizeOf(dtype);
  FOREBAY_ASSIGN_OR_RETURN(buffers_.emplace_back(), device_->Allocate(size_bytes));
  void* const address = buffers_.back().address();
  FOREBAY_RETURN_IF_ERROR(
      Fill(address, size_bytes, RandomPattern(std::min(count, kPatternElems), dtype)));
  return address;
}

absl::StatusOr<void*> BenchGpu::Zeros(int64_t size_bytes) {
  FOREBAY_ASSIGN_OR_RETURN(buffers_.emplace_back(), device_->Allocate(size_bytes));
  void* const address = buffers_.back().address();
  FOREBAY_RETURN_IF_ERROR(stream_->Fill(address, std::byte{0}, size_bytes));
  return address;
}

absl::StatusOr<int32_t*> BenchGpu::Indices(const std::vector<int32_t>& values) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  FOREBAY_ASSIGN_OR_RETURN(void* const address, Zeros(static_cast<int64_t>(bytes.size())));
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(address, bytes));
  FOREBAY_RETURN_IF_ERROR(stream_->Await());  // `values` may go now
  return static_cast<int32_t*>(address);
}

absl::StatusOr<double> BenchGpu::SecondsOf(const std::function<absl::Status()>& enqueue,
                                           int times) {
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*begin_));
  for (int i = 0; i < times; ++i) FOREBAY_RETURN_IF_ERROR(enqueue());
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*end_));
  FOREBAY_ASSIGN_OR_RETURN(const double seconds, end_->SecondsSince(*begin_));
  return seconds / times;
}

absl::StatusOr<double> BenchGpu::MedianSeconds(const std::function<absl::Status()>& enqueue) {
  int times = 1;
  if (settings_.seconds > 0) {
    FOREBAY_RETURN_IF_ERROR(SecondsOf(enqueue, 1).status());  // kernels are loaded at first use
    FOREBAY_ASSIGN_OR_RETURN(const double once, SecondsOf(enqueue, 3));
    times = static_cast<int>(
        std::clamp(std::ceil(settings_.seconds / once), 1.0, static_cast<double>(kMostTimes)));
  }
  std::vector<double> seconds;
  for (int i = 0; i < settings_.repeats; ++i) {
    FOREBAY_ASSIGN_OR_RETURN(seconds.emplace_back(), SecondsOf(enqueue, times));
  }
  return MedianOf(std::move(seconds));
}

}  // namespace forebay
