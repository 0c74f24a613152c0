#include "forebay/step/gpu_residents.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<GpuResidents>> GpuResidents::Create(std::span<const int> layers,
                                                                   ParamSource* loader,
                                                                   Device* device) {
  FOREBAY_CHECK(std::ranges::is_sorted(layers));
  std::unique_ptr<GpuResidents> made(new GpuResidents());
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream());
  loader->Expect(layers);
  for (const int layer : layers) {
    FOREBAY_RETURN_IF_ERROR(made->Load(layer, loader, device, *stream));
  }
  return made;
}

absl::Status GpuResidents::Load(int layer, ParamSource* loader, Device* device, Stream& stream) {
  FOREBAY_ASSIGN_OR_RETURN(WeightsLease lease, loader->Acquire(layer));
  const LayerWeights& weights = lease.weights();
  FOREBAY_CHECK(weights.device == DeviceKind::kHost && weights.ready == nullptr);
  Resident& resident = residents_.emplace_back();
  resident.layer = layer;
  const int64_t num_bytes = BytesOf(weights);
  FOREBAY_ASSIGN_OR_RETURN(resident.memory, device->Allocate(num_bytes));
  resident.weights = {
      .dtype = weights.dtype,
      .data = {resident.memory.As<const std::byte>(), static_cast<size_t>(num_bytes)},
      .device = device->kind()};
  return CopyWhole(weights, [&](std::span<const std::byte> part, int64_t offset) -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(stream.CopyToDevice(resident.memory.As<std::byte>() + offset, part));
    // Before the lease ends. The loader reads the next layer meanwhile.
    return stream.Await();
  });
}

GpuResidents::~GpuResidents() {
  for (const Resident& resident : residents_) {
    // Its readers may not be through. An error of the device was reported to who awaited.
    if (resident.last_read != nullptr) resident.last_read->Await().IgnoreError();
  }
}

GpuResidents::Resident* GpuResidents::Find(int layer) {
  const auto it = std::ranges::lower_bound(residents_, layer, {}, &Resident::layer);
  return it != residents_.end() && it->layer == layer ? &*it : nullptr;
}

void GpuResidents::Expect(std::span<const int> layers) {
  announced_.Add(layers);
  if (others_ == nullptr) return;
  std::vector<int> of_others;
  for (const int layer : layers) {
    if (Find(layer) == nullptr) of_others.push_back(layer);
  }
  if (!of_others.empty()) others_->Expect(of_others);
}

absl::StatusOr<WeightsLease> GpuResidents::Acquire(int layer) {
  FOREBAY_RETURN_IF_ERROR(announced_.CheckIsNext(layer));
  if (Resident* const resident = Find(layer); resident != nullptr) {
    announced_.TakeNext();
    return WeightsLease(this, layer, resident->weights);
  }
  FOREBAY_CHECK(others_ != nullptr);
  FOREBAY_ASSIGN_OR_RETURN(WeightsLease lease, others_->Acquire(layer));
  announced_.TakeNext();
  return lease;
}

void GpuResidents::Release(int layer, Event* done) {
  Find(layer)->last_read = done;
}

}  // namespace forebay
