#include "forebay/offload/ranks/part_gradients.h"

#include <algorithm>
#include <array>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/collective/sum_cuda.h"
#include "forebay/collective/sum_in_rank_order.h"
#include "forebay/device/stream_trace.h"

namespace forebay {
namespace {

constexpr char kPurpose[] = "sum of the gradients of parts (fp32)";
constexpr int64_t kElemBytes = sizeof(float);

}  // namespace

// ---- On the host --------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<HostPartGradients>> HostPartGradients::Create(int64_t largest_elems,
                                                                             ThreadPool* pool,
                                                                             MemoryBudget* budget) {
  std::unique_ptr<HostPartGradients> made(new HostPartGradients(pool));
  FOREBAY_ASSIGN_OR_RETURN(made->buffer_,
                           HostBuffer::Create(budget, kPurpose, largest_elems * kElemBytes));
  return made;
}

int64_t HostPartGradients::ChargedBytes(int64_t largest_elems) {
  return HostBuffer::ChargedBytes(largest_elems * kElemBytes);
}

absl::Status HostPartGradients::Add(std::span<const LayerGradient> of_parts) {
  constexpr int64_t kPieceElems = 1 << 14;
  const TraceScope trace("add the gradients of parts", {.layer = of_parts.front().layer});
  const std::span<float> sum = buffer_.As<float>().first(of_parts.front().floats().size());
  const int64_t num_elems = std::ssize(sum);
  pool_->ParallelFor((num_elems + kPieceElems - 1) / kPieceElems, [&](int64_t piece) {
    const int64_t begin = piece * kPieceElems;
    const int64_t count = std::min(kPieceElems, num_elems - begin);
    // Two at a time, in the order of the parts: that many pointers need no memory.
    const float* before = of_parts.front().floats().data() + begin;
    for (const LayerGradient& part : of_parts.subspan(1)) {
      const std::array<const float*, 2> addends = {before, part.floats().data() + begin};
      SumInRankOrder(addends, sum.data() + begin, count);
      before = sum.data() + begin;
    }
  });
  sum_ = Fp32Gradient(of_parts.front().layer, sum);
  return absl::OkStatus();
}

// ---- On GPUs ------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<GpuPartGradients>> GpuPartGradients::Create(
    std::span<Device* const> devices, int64_t largest_elems, MemoryBudget* first_device_budget,
    MemoryBudget* budget) {
  FOREBAY_CHECK(devices.size() >= 2);
  std::unique_ptr<GpuPartGradients> made(new GpuPartGradients());
  Device* const first = devices.front();
  const int64_t bytes = largest_elems * kElemBytes;
  const int num_devices = static_cast<int>(devices.size());
  for (int64_t left = DeviceBytes(num_devices, largest_elems); left > 0; left -= bytes) {
    FOREBAY_ASSIGN_OR_RETURN(made->buffers_.emplace_back(),
                             DeviceAllocation::Create(first_device_budget, first, kPurpose, bytes));
  }
  FOREBAY_ASSIGN_OR_RETURN(made->is_complete_, first->CreateEvent());
  FOREBAY_ASSIGN_OR_RETURN(made->is_taken_, first->CreateEvent());
  FOREBAY_ASSIGN_OR_RETURN(made->sums_, CreateTracedStream(first, "sums of gradients"));
  for (Device* const device : devices.subspan(1)) {
    Way& way = made->ways_.emplace_back();
    FOREBAY_ASSIGN_OR_RETURN(way.in_ram, HostBuffer::Create(budget, "gradients of the other GPUs",
                                                            bytes, {.device = device}));
    FOREBAY_ASSIGN_OR_RETURN(way.has_left, device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(way.has_come, first->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(way.stream, CreateTracedStream(device, "gradients to RAM"));
  }
  return made;
}

GpuPartGradients::~GpuPartGradients() {
  // Both use memory of the other. Errors were reported to who awaited.
  for (const Way& way : ways_) {
    if (way.stream != nullptr) way.stream->Await().IgnoreError();
  }
  if (sums_ != nullptr) sums_->Await().IgnoreError();
}

int64_t GpuPartGradients::DeviceBytes(int num_devices, int64_t largest_elems) {
  return std::min(num_devices - 1, 2) * largest_elems * kElemBytes;
}

int64_t GpuPartGradients::ChargedBytes(int num_devices, int64_t largest_elems) {
  return (num_devices - 1) * HostBuffer::ChargedBytes(largest_elems * kElemBytes);
}

absl::Status GpuPartGradients::Bring(const LayerGradient& gradient, Way& way, float* to) {
  const int layer = gradient.layer;
  const std::span<std::byte> in_ram = way.in_ram.bytes().first(gradient.bytes.size());
  if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(way.stream->WaitFor(*gradient.ready));
  FOREBAY_RETURN_IF_ERROR(way.stream->WaitFor(*way.has_come));  // the one before, from RAM
  {
    const StreamScope scope(*way.stream, "gradient", {.layer = layer}, std::ssize(in_ram));
    FOREBAY_RETURN_IF_ERROR(way.stream->CopyToHost(in_ram, gradient.floats().data()));
  }
  FOREBAY_RETURN_IF_ERROR(way.stream->Record(*way.has_left));
  if (gradient.taken != nullptr) FOREBAY_RETURN_IF_ERROR(way.stream->Record(*gradient.taken));
  FOREBAY_RETURN_IF_ERROR(sums_->WaitFor(*way.has_left));
  {
    const StreamScope scope(*sums_, "gradient of a part", {.layer = layer}, std::ssize(in_ram));
    FOREBAY_RETURN_IF_ERROR(sums_->CopyToDevice(to, in_ram));
  }
  return sums_->Record(*way.has_come);
}

absl::Status GpuPartGradients::AddTo(int layer, float* sum, const float* first, const float* second,
                                     int64_t num_elems) {
  const StreamScope scope(*sums_, "add", {.layer = layer});
  const std::array<const float*, 2> addends = {first, second};
  return sums_->Launch([&](void* native_stream) {
    return SumInRankOrderCuda(addends, sum, num_elems, native_stream);
  });
}

absl::Status GpuPartGradients::Add(std::span<const LayerGradient> of_parts) {
  FOREBAY_CHECK(of_parts.size() == ways_.size() + 1);
  const LayerGradient& own = of_parts.front();
  const int layer = own.layer;
  const TraceScope trace("add the gradients of parts (enqueue)", {.layer = layer});
  const int64_t num_elems = own.num_elems();
  auto* const sum = reinterpret_cast<float*>(buffers_.front().address());
  auto* const coming = reinterpret_cast<float*>(buffers_.back().address());
  FOREBAY_RETURN_IF_ERROR(sums_->WaitFor(*is_taken_));  // the sum before, by whoever asked for it
  if (own.ready != nullptr) FOREBAY_RETURN_IF_ERROR(sums_->WaitFor(*own.ready));
  // The second part comes to where the sum will be, and the first is added to it: as adding it to
  // the first.
  FOREBAY_RETURN_IF_ERROR(Bring(of_parts[1], ways_.front(), sum));
  FOREBAY_RETURN_IF_ERROR(AddTo(layer, sum, own.floats().data(), sum, num_elems));
  if (own.taken != nullptr) FOREBAY_RETURN_IF_ERROR(sums_->Record(*own.taken));
  for (size_t part = 2; part < of_parts.size(); ++part) {
    FOREBAY_RETURN_IF_ERROR(Bring(of_parts[part], ways_[part - 1], coming));
    FOREBAY_RETURN_IF_ERROR(AddTo(layer, sum, sum, coming, num_elems));
  }
  FOREBAY_RETURN_IF_ERROR(sums_->Record(*is_complete_));
  sum_ = {.layer = layer,
          .bytes = std::as_bytes(std::span(sum, own.floats().size())),
          .device = DeviceKind::kCuda,
          .ready = is_complete_.get(),
          .taken = is_taken_.get()};
  return absl::OkStatus();
}

}  // namespace forebay
