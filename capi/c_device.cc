#include "forebay/capi/c_device.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay::capi {

absl::StatusOr<std::unique_ptr<DeviceLeases>> DeviceLeases::Create(int index, int num_places,
                                                                   const Inventory& inventory,
                                                                   DType dtype) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateCudaDevice(index));
  std::unique_ptr<DeviceLeases> leases(new DeviceLeases(std::move(device), index, num_places));
  for (const LayerSpec& layer : inventory.layers()) {
    if (layer.raw) continue;
    ++leases->num_layers_;
    leases->place_bytes_ = std::max(leases->place_bytes_, layer.num_elems * SizeOf(dtype));
  }
  for (const TensorSpec& tensor : inventory.tensors()) {
    if (tensor.raw) continue;
    leases->staging_bytes_ =
        std::max(leases->staging_bytes_, tensor.num_elems * SizeOf(DType::kF32));
  }
  if (leases->place_bytes_ == 0) {
    return UsageError("no layer has weights, so there is nothing to lend on a device");
  }
  FOREBAY_ASSIGN_OR_RETURN(const DeviceMemory memory, leases->device_->Memory());
  if (memory.free_bytes < leases->device_bytes()) {
    return DoesNotFitError(fmt::format(
        "{} layers of up to {} need {} of {}, and {} are free. Lend fewer at a time "
        "(num_window_layers, 3 at least), make layers smaller, or free some of it",
        num_places, FormatBytes(leases->place_bytes_), FormatBytes(leases->device_bytes()),
        leases->device_->name(), FormatBytes(memory.free_bytes)));
  }
  return leases;
}

absl::Status DeviceLeases::Open(LayerSession& session) {
  if (window_ != nullptr) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(ends_, device_->CreateStream());
  FOREBAY_ASSIGN_OR_RETURN(gradients_, device_->CreateStream());
  FOREBAY_ASSIGN_OR_RETURN(gradient_is_made_, device_->CreateEvent());
  for (std::unique_ptr<Event>& copied : gradient_is_copied_) {
    FOREBAY_ASSIGN_OR_RETURN(copied, device_->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(window_,
                           GpuWindow::Create(&session, device(), num_places_, place_bytes_));
  return absl::OkStatus();
}

std::vector<int> DeviceLeases::LentLayers() const {
  std::vector<int> lent;
  for (int layer = 0; window_ != nullptr && layer < num_layers_; ++layer) {
    if (window_->IsLent(layer)) lent.push_back(layer);
  }
  return lent;
}

void DeviceLeases::CancelExpected() {
  if (window_ != nullptr) window_->CancelExpected();
}

absl::Status DeviceLeases::CheckNothingIsExpected(std::string_view call) const {
  if (window_ == nullptr || window_->num_expected() == 0) return absl::OkStatus();
  return UsageError(
      fmt::format("{}: {} layers are announced and not acquired. Acquire them, or cancel them",
                  call, window_->num_expected()));
}

absl::Status DeviceLeases::Failure() const {
  const std::lock_guard lock(ends_mutex_);
  return failure_;
}

absl::StatusOr<DeviceLeases::Lent> DeviceLeases::Acquire(int layer) {
  FOREBAY_RETURN_IF_ERROR(Failure());
  if (window_->IsLent(layer)) {
    return UsageError(fmt::format(
        "layer {} is acquired while it is lent on the device. Use that lease, or release it before",
        layer));
  }
  Lent lent;
  FOREBAY_ASSIGN_OR_RETURN(lent.weights, window_->Acquire(layer));
  FOREBAY_ASSIGN_OR_RETURN(lent.used, UsedEventOf(lent.weights.weights()));
  return lent;
}

// One for each place: it is recorded again only by the next lease of the place, whose copy has
// waited for it.
absl::StatusOr<Event*> DeviceLeases::UsedEventOf(const LayerWeights& weights) {
  for (const auto& [place, event] : used_) {
    if (place == weights.data.data()) return event.get();
  }
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, device_->CreateEvent());
  return used_.emplace_back(weights.data.data(), std::move(event)).second.get();
}

absl::Status DeviceLeases::MakeReady(const LayerWeights& weights, void* native_stream) {
  return device_->AdoptStream(native_stream)->WaitFor(*weights.ready);
}

void DeviceLeases::EndUses(std::span<void* const> native_streams, Event& used) {
  const std::lock_guard lock(ends_mutex_);
  const absl::Status status = [&]() -> absl::Status {
    for (void* const native_stream : native_streams) {
      FOREBAY_RETURN_IF_ERROR(device_->AdoptStream(native_stream)->Record(used));
      if (native_streams.size() == 1) return absl::OkStatus();
      FOREBAY_RETURN_IF_ERROR(ends_->WaitFor(used));
    }
    return ends_->Record(used);
  }();
  failure_.Update(status);
}

absl::Status DeviceLeases::AddGradient(LayerSession& session, int tensor, DType dtype,
                                       const void* data, size_t num_bytes, void* native_stream,
                                       std::span<std::byte> staging) {
  if (num_bytes > staging.size()) {
    return UsageError(
        fmt::format("the gradient of tensor {} has {} bytes; the largest tensor has "
                    "{} in fp32",
                    tensor, num_bytes, staging.size()));
  }
  FOREBAY_RETURN_IF_ERROR(session.ExpectGradient(tensor, dtype, static_cast<int64_t>(num_bytes)));
  if (num_bytes > staging.size() - on_its_way_.place.size()) {
    FOREBAY_RETURN_IF_ERROR(LandGradient(session));
  }
  // The one before may still be in the other end.
  const bool is_first = on_its_way_.place.data() != staging.data();
  OnItsWay gradient = {.tensor = tensor, .dtype = dtype};
  gradient.place = is_first ? staging.first(num_bytes) : staging.last(num_bytes);
  gradient.number = 1 - on_its_way_.number;
  Event& copied = *gradient_is_copied_[static_cast<size_t>(gradient.number)];
  const std::unique_ptr<Stream> stream = device_->AdoptStream(native_stream);
  FOREBAY_RETURN_IF_ERROR(stream->Record(*gradient_is_made_));
  FOREBAY_RETURN_IF_ERROR(gradients_->WaitFor(*gradient_is_made_));
  if (num_bytes > 0) FOREBAY_RETURN_IF_ERROR(gradients_->CopyToHost(gradient.place, data));
  FOREBAY_RETURN_IF_ERROR(gradients_->Record(copied));
  FOREBAY_RETURN_IF_ERROR(stream->WaitFor(copied));
  return Land(std::exchange(on_its_way_, gradient), session);
}

absl::Status DeviceLeases::Land(const OnItsWay& gradient, LayerSession& session) {
  if (gradient.tensor < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(gradient_is_copied_[static_cast<size_t>(gradient.number)]->Await());
  return session.AddGradient(gradient.tensor, gradient.dtype, gradient.place);
}

absl::Status DeviceLeases::LandGradient(LayerSession& session) {
  return Land(std::exchange(on_its_way_, {.number = on_its_way_.number}), session);
}

void DeviceLeases::DropGradient() {
  on_its_way_ = {.number = on_its_way_.number};
  // Also for a copy that was begun by a call which failed then. One that fails has ended, too.
  if (gradients_ != nullptr) gradients_->Await().IgnoreError();
}

}  // namespace forebay::capi
