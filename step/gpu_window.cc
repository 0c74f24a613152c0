#include "forebay/step/gpu_window.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<GpuWindow>> GpuWindow::Create(ParamSource* source, Device* device,
                                                             int num_places, int64_t place_bytes) {
  FOREBAY_CHECK(num_places >= 3);
  std::unique_ptr<GpuWindow> window(new GpuWindow(source, device));
  FOREBAY_ASSIGN_OR_RETURN(window->copies_, device->CreateStream());
  window->places_.resize(static_cast<size_t>(num_places));
  for (Place& place : window->places_) {
    FOREBAY_ASSIGN_OR_RETURN(place.memory, device->Allocate(place_bytes));
    FOREBAY_ASSIGN_OR_RETURN(place.copied, device->CreateEvent());
  }
  return window;
}

GpuWindow::~GpuWindow() {
  for (Place& place : places_) {
    FOREBAY_CHECK(place.state != PlaceState::kLent);
    // Its readers may not be through. An error of the device was reported to who awaited.
    if (place.last_read != nullptr) place.last_read->Await().IgnoreError();
  }
  copies_->Await().IgnoreError();
}

void GpuWindow::Expect(std::span<const int> layers) {
  announced_.Add(layers);
  source_->Expect(layers);
}

void GpuWindow::CancelExpected() {
  announced_.Clear();
  if (staged_ != nullptr) staged_->state = PlaceState::kFree;
  staged_ = nullptr;
}

GpuWindow::Place* GpuWindow::FreePlace() {
  const auto free = std::ranges::find(places_, PlaceState::kFree, &Place::state);
  return free == places_.end() ? nullptr : &*free;
}

// Requires: `layer` is the next of the source.
absl::Status GpuWindow::Stage(Place& place, int layer) {
  FOREBAY_ASSIGN_OR_RETURN(WeightsLease lease, source_->Acquire(layer));
  const LayerWeights& weights = lease.weights();
  FOREBAY_CHECK(weights.device == DeviceKind::kHost && weights.ready == nullptr);
  FOREBAY_CHECK(static_cast<int64_t>(weights.data.size()) <= place.memory.size_bytes());
  const TraceScope trace("copy weights to the GPU (enqueue)", {.layer = layer});
  if (place.last_read != nullptr) FOREBAY_RETURN_IF_ERROR(copies_->WaitFor(*place.last_read));
  FOREBAY_RETURN_IF_ERROR(copies_->CopyToDevice(place.memory.address(), weights.data));
  FOREBAY_RETURN_IF_ERROR(copies_->Record(*place.copied));
  copied_bytes_ += static_cast<int64_t>(weights.data.size());
  place.layer = layer;
  place.weights = {.dtype = weights.dtype,
                   .data = {place.memory.As<const std::byte>(), weights.data.size()},
                   .device = device_->kind(),
                   .ready = place.copied.get()};
  place.state = PlaceState::kStaged;
  lease.Release(place.copied.get());
  return absl::OkStatus();
}

// The next layer, where there is a place for it. An error is that of its Acquire.
void GpuWindow::StageAhead() {
  if (!failure_.ok() || staged_ != nullptr || announced_.empty()) return;
  Place* const place = FreePlace();
  if (place == nullptr) return;
  failure_ = Stage(*place, announced_.next());
  if (failure_.ok()) staged_ = place;
}

absl::StatusOr<WeightsLease> GpuWindow::Acquire(int layer) {
  FOREBAY_RETURN_IF_ERROR(announced_.CheckIsNext(layer));
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (staged_ == nullptr) {
    Place* const place = FreePlace();
    if (place == nullptr) {
      return UsageError(fmt::format(
          "layer {} is acquired while all {} places on the device are lent. Release one before",
          layer, places_.size()));
    }
    FOREBAY_RETURN_IF_ERROR(Stage(*place, layer));
    staged_ = place;
  }
  Place& place = *std::exchange(staged_, nullptr);
  announced_.TakeNext();
  place.state = PlaceState::kLent;
  return WeightsLease(this, layer, place.weights);
}

bool GpuWindow::IsLent(int layer) const {
  return std::ranges::any_of(places_, [&](const Place& each) {
    return each.state == PlaceState::kLent && each.layer == layer;
  });
}

void GpuWindow::Release(int layer, Event* done) {
  const auto place = std::ranges::find_if(places_, [&](const Place& each) {
    return each.state == PlaceState::kLent && each.layer == layer;
  });
  FOREBAY_CHECK(place != places_.end());
  place->state = PlaceState::kFree;
  place->last_read = done;
  StageAhead();
}

}  // namespace forebay
