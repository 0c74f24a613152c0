#include "forebay/optimizer/gradient_landing.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/stream_trace.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/kernels/round_gradient_cuda.h"

namespace forebay {

int64_t GradientLanding::PartElems(std::vector<int64_t> layer_elems) {
  constexpr int64_t kLeastElems = int64_t{64} << 20;
  if (layer_elems.empty()) return 0;
  const auto middle = layer_elems.begin() + std::ssize(layer_elems) / 2;
  std::ranges::nth_element(layer_elems, middle);
  return std::min(std::max(*middle, kLeastElems), std::ranges::max(layer_elems));
}

int64_t GradientLanding::DeviceBytes(DType dtype, int64_t part_elems) {
  return part_elems * SizeOf(dtype) + part_elems / kNormBlockElems * int64_t{sizeof(double)};
}

int64_t GradientLanding::ChargedBytes(DType dtype, int64_t part_elems) {
  constexpr int64_t kNumPlaces = std::tuple_size_v<decltype(places_)>;
  return kNumPlaces * HostBuffer::ChargedBytes(DeviceBytes(dtype, part_elems));
}

absl::StatusOr<std::unique_ptr<GradientLanding>> GradientLanding::Create(
    Device* device, DType dtype, int64_t part_elems, MemoryBudget* device_budget,
    MemoryBudget* budget) {
  std::unique_ptr<GradientLanding> landing(new GradientLanding(dtype, part_elems));
  const int64_t bytes = DeviceBytes(dtype, part_elems);
  FOREBAY_ASSIGN_OR_RETURN(
      landing->on_device_,
      DeviceAllocation::Create(device_budget, device, "rounded gradient of a layer", bytes));
  for (Place& place : landing->places_) {
    FOREBAY_ASSIGN_OR_RETURN(place.memory, HostBuffer::Create(budget, "gradient of one layer",
                                                              bytes, {.device = device}));
    FOREBAY_ASSIGN_OR_RETURN(place.has_landed, device->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(landing->stream_, CreateTracedStream(device, "gradients to RAM"));
  return landing;
}

absl::StatusOr<int64_t> GradientLanding::Start(const LayerGradient& gradient, int64_t first_elem) {
  const int64_t num_elems = std::min(gradient.num_elems() - first_elem, part_elems_);
  FOREBAY_CHECK(num_elems > 0 && num_elems % kNormBlockElems == 0);
  FOREBAY_CHECK(num_started_ - num_landed_ < std::ssize(places_));
  if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*gradient.ready));
  const StreamScope scope(*stream_, "gradient", {.layer = gradient.layer},
                          num_elems * SizeOf(dtype_));
  std::byte* const rounded = on_device_.address();
  auto* const squares = reinterpret_cast<double*>(rounded + SquaresOffset());
  FOREBAY_RETURN_IF_ERROR(stream_->Launch([&](void* native_stream) {
    return RoundGradientCuda(gradient.floats().data() + first_elem, num_elems, dtype_, rounded,
                             squares, native_stream);
  }));
  // Behind each part: an error may keep the others from coming.
  if (gradient.taken != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->Record(*gradient.taken));
  Place& place = PlaceOf(num_started_);
  place.layer = gradient.layer;
  place.first_elem = gradient.first_elem + first_elem;
  place.num_elems = num_elems;
  const std::span<std::byte> to = place.memory.bytes();
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToHost(to.first(num_elems * SizeOf(dtype_)), rounded));
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToHost(
      to.subspan(SquaresOffset(), num_elems / kNormBlockElems * sizeof(double)), squares));
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*place.has_landed));
  ++num_started_;
  return first_elem + num_elems;
}

absl::StatusOr<LayerGradient> GradientLanding::Land() {
  FOREBAY_CHECK(AnyIsOnItsWay());
  Place& place = PlaceOf(num_landed_);
  FOREBAY_RETURN_IF_ERROR(place.has_landed->Await());
  ++num_landed_;
  const std::span<std::byte> bytes = place.memory.bytes();
  return LayerGradient{
      .layer = place.layer,
      .bytes = bytes.first(place.num_elems * SizeOf(dtype_)),
      .dtype = dtype_,
      .first_elem = place.first_elem,
      .block_squares = {reinterpret_cast<const double*>(bytes.data() + SquaresOffset()),
                        static_cast<size_t>(place.num_elems / kNormBlockElems)}};
}

}  // namespace forebay
