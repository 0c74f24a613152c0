#include "forebay/step/gpu_window.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/device/stream_trace.h"

namespace forebay {

int64_t GpuPlaces::TotalBytes() const {
  return std::accumulate(place_bytes.begin(), place_bytes.end(), int64_t{0});
}

GpuPlaces PlacesOfChain(const Inventory& inventory, DType dtype) {
  GpuPlaces places;
  for (const LayerSpec& layer : inventory.layers()) {
    places.layer_bytes.push_back(layer.num_elems * SizeOf(dtype));
  }
  const std::span<const int64_t> others =
      std::span(places.layer_bytes).subspan(1, places.layer_bytes.size() - 2);
  const int64_t most_of_others = std::ranges::max(others);
  places.place_bytes = {most_of_others, most_of_others, std::ranges::max(places.layer_bytes)};
  return places;
}

absl::StatusOr<std::unique_ptr<GpuWindow>> GpuWindow::Create(ParamSource* source,
                                                             std::span<Device* const> devices,
                                                             GpuPlaces places, UsedOnOthers used) {
  FOREBAY_CHECK(places.place_bytes.size() >= 3 && std::ranges::is_sorted(places.place_bytes));
  FOREBAY_CHECK(devices.size() == 1 || used != nullptr);
  std::unique_ptr<GpuWindow> window(new GpuWindow(source, std::move(places)));
  window->used_on_others_ = std::move(used);
  window->kind_ = devices.front()->kind();
  for (Device* const device : devices) {
    FOREBAY_ASSIGN_OR_RETURN(window->streams_.emplace_back(),
                             CreateTracedStream(device, "weights to the GPU"));
  }
  for (const int64_t place_bytes : window->shape_.place_bytes) {
    FOREBAY_RETURN_IF_ERROR(window->AddPlace(devices, place_bytes));
  }
  return window;
}

absl::Status GpuWindow::AddPlace(std::span<Device* const> devices, int64_t place_bytes) {
  Place& place = places_.emplace_back(Place{.size_bytes = place_bytes});
  for (Device* const device : devices) {
    Copy& copy = place.copies.emplace_back();
    FOREBAY_ASSIGN_OR_RETURN(copy.memory, device->Allocate(place_bytes));
    FOREBAY_ASSIGN_OR_RETURN(copy.is_there, device->CreateEvent());
  }
  return absl::OkStatus();
}

GpuWindow::~GpuWindow() {
  for (Place& place : places_) {
    FOREBAY_CHECK(place.state != PlaceState::kLent);
    // Its readers may not be through. An error of the device was reported to who awaited.
    for (const Copy& copy : place.copies) {
      if (copy.last_read != nullptr) copy.last_read->Await().IgnoreError();
    }
  }
  for (const std::unique_ptr<Stream>& stream : streams_) {
    if (stream != nullptr) stream->Await().IgnoreError();
  }
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

GpuWindow::Place* GpuWindow::FreePlaceFor(int layer) {
  const auto free = std::ranges::find_if(places_, [&](const Place& place) {
    return place.state == PlaceState::kFree && place.size_bytes >= shape_.BytesOf(layer);
  });
  return free == places_.end() ? nullptr : &*free;
}

bool GpuWindow::IsItsOwn(const Place& place, int layer) const {
  return place.size_bytes == *std::ranges::lower_bound(shape_.place_bytes, shape_.BytesOf(layer));
}

// To every device. The first one's copy counts as there when all are: the source waits for that.
absl::Status GpuWindow::CopyTo(Place& place, int layer, int64_t offset,
                               std::span<const std::byte> weights) {
  for (size_t d = place.copies.size(); d-- > 0;) {
    const Copy& copy = place.copies[d];
    FOREBAY_CHECK(offset + std::ssize(weights) <= copy.memory.size_bytes());
    if (copy.last_read != nullptr) FOREBAY_RETURN_IF_ERROR(streams_[d]->WaitFor(*copy.last_read));
    {
      const StreamScope scope(*streams_[d], "weights", {.layer = layer}, std::ssize(weights));
      FOREBAY_RETURN_IF_ERROR(
          streams_[d]->CopyToDevice(copy.memory.As<std::byte>() + offset, weights));
    }
    for (size_t other = place.copies.size() - 1; d == 0 && other > 0; --other) {
      FOREBAY_RETURN_IF_ERROR(streams_[d]->WaitFor(*place.copies[other].is_there));
    }
    FOREBAY_RETURN_IF_ERROR(streams_[d]->Record(*copy.is_there));
    copied_bytes_ += static_cast<int64_t>(weights.size());
  }
  return absl::OkStatus();
}

// Requires: `layer` is the next of the source.
absl::Status GpuWindow::Stage(Place& place, int layer) {
  FOREBAY_ASSIGN_OR_RETURN(WeightsLease lease, source_->Acquire(layer));
  const LayerWeights& weights = lease.weights();
  FOREBAY_CHECK(weights.device == DeviceKind::kHost && weights.ready == nullptr);
  const TraceScope trace("copy weights to the GPU (enqueue)", {.layer = layer});
  const auto copy = [&](std::span<const std::byte> part, int64_t offset) -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CopyTo(place, layer, offset, part));
    // The next piece ends this one.
    return weights.pieces == nullptr ? absl::OkStatus() : place.copies.front().is_there->Await();
  };
  FOREBAY_RETURN_IF_ERROR(CopyWhole(weights, copy));
  const Copy& first = place.copies.front();
  place.layer = layer;
  place.weights = {
      .dtype = weights.dtype,
      .data = {first.memory.As<const std::byte>(), static_cast<size_t>(BytesOf(weights))},
      .device = kind_,
      .ready = first.is_there.get()};
  place.state = PlaceState::kStaged;
  lease.Release(first.is_there.get());
  return absl::OkStatus();
}

// The next layer, where there is a place for it: a larger one is left to a layer that needs it. An
// error is that of its Acquire.
void GpuWindow::StageAhead() {
  if (!failure_.ok() || staged_ != nullptr || announced_.empty()) return;
  const int layer = announced_.next();
  Place* const place = FreePlaceFor(layer);
  if (place == nullptr || !IsItsOwn(*place, layer)) return;
  failure_ = Stage(*place, layer);
  if (failure_.ok()) staged_ = place;
}

absl::StatusOr<WeightsLease> GpuWindow::Acquire(int layer) {
  FOREBAY_RETURN_IF_ERROR(announced_.CheckIsNext(layer));
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (staged_ == nullptr) {
    Place* const place = FreePlaceFor(layer);
    if (place == nullptr) {
      return UsageError(fmt::format(
          "layer {} is acquired while all {} places on the device that have room for it are lent. "
          "Release one before",
          layer, std::ranges::count_if(places_, [&](const Place& each) {
            return each.size_bytes >= shape_.BytesOf(layer);
          })));
    }
    FOREBAY_RETURN_IF_ERROR(Stage(*place, layer));
    staged_ = place;
  }
  Place& place = *std::exchange(staged_, nullptr);
  announced_.TakeNext();
  place.state = PlaceState::kLent;
  return WeightsLease(this, layer, place.weights);
}

const GpuWindow::Place* GpuWindow::LentPlace(int layer) const {
  const auto place = std::ranges::find_if(places_, [&](const Place& each) {
    return each.state == PlaceState::kLent && each.layer == layer;
  });
  return place == places_.end() ? nullptr : &*place;
}

bool GpuWindow::IsLent(int layer) const {
  return LentPlace(layer) != nullptr;
}

LayerWeights GpuWindow::WeightsOn(size_t device, int layer) const {
  const Place* const place = LentPlace(layer);
  FOREBAY_CHECK(place != nullptr);
  const Copy& copy = place->copies[device];
  LayerWeights weights = place->weights;
  weights.data = {copy.memory.As<const std::byte>(), weights.data.size()};
  weights.ready = copy.is_there.get();
  return weights;
}

void GpuWindow::Release(int layer, Event* done) {
  const Place* const lent = LentPlace(layer);
  FOREBAY_CHECK(lent != nullptr);
  Place& place = places_[static_cast<size_t>(lent - places_.data())];
  place.state = PlaceState::kFree;
  place.copies.front().last_read = done;
  for (size_t d = 1; d < place.copies.size(); ++d) {
    place.copies[d].last_read = used_on_others_(d, layer);
  }
  StageAhead();
}

}  // namespace forebay
