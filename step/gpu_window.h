// Weights on a GPU: a source over another one. It copies the layers that the other lends from host
// memory to places on the GPU, on a stream of its own, one layer ahead of the computation.
//
//   source: Acquire -> copy stream: wait for the last reader of a place, copy, record `copied`
//           -> source: Release(copied) -> Acquire here: a lease that is ready at `copied`
//
// A layer that is lent in pieces is copied while the source reads them: who acquires or releases
// here waits for the disk then.
//
// Host memory is pinned by whoever owns it (HostBufferOptions::device); what is not is copied too,
// more slowly.
//
// Where several GPUs compute the same layers, each layer is copied to a place on every one of them,
// and the source's lease ends when all have it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/device/device.h"
#include "forebay/step/announced_layers.h"
#include "forebay/step/param_source.h"

namespace forebay {

// The places of layers on each device.
struct GpuPlaces {
  std::vector<int64_t> place_bytes;  // from the smallest to the largest
  std::vector<int64_t> layer_bytes;  // of the weights of each layer; empty: of all a place's

  int64_t TotalBytes() const;
  int64_t BytesOf(int layer) const {
    return layer_bytes.empty() ? place_bytes.back() : layer_bytes[static_cast<size_t>(layer)];
  }
};
// For a model whose layers follow one another, of which the first and the last may be larger than
// the others and are never needed at one time: room for two of the others, and for any one.
GpuPlaces PlacesOfChain(const Inventory& inventory, DType dtype);

// Owned by one thread.
class GpuWindow final : public ParamSource {
 public:
  // `places`: for the leases that may be out, and for one layer that is copied ahead: three at
  // least, for the two leases of ParamSource, each place so large on the device. A layer lies in
  // the smallest free place that has room for it; ahead it comes only to a place than which no
  // smaller one has. `source` ends before this, as it may wait for its events; `device` outlives
  // this. OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<GpuWindow>> Create(ParamSource* source, Device* device,
                                                           GpuPlaces places) {
    return Create(source, std::span(&device, 1), std::move(places), {});
  }
  // `num_places` of the largest layer.
  static absl::StatusOr<std::unique_ptr<GpuWindow>> Create(ParamSource* source, Device* device,
                                                           int num_places, int64_t place_bytes) {
    return Create(source, device,
                  {.place_bytes = std::vector(static_cast<size_t>(num_places), place_bytes)});
  }
  // The same on several. Leases have the weights on the first; when nobody on one of the others
  // reads a layer any more, which is asked when its lease is released, `used` says.
  using UsedOnOthers = std::function<Event*(size_t device, int layer)>;
  static absl::StatusOr<std::unique_ptr<GpuWindow>> Create(ParamSource* source,
                                                           std::span<Device* const> devices,
                                                           GpuPlaces places, UsedOnOthers used);
  ~GpuWindow() override;  // every lease has ended

  void Expect(std::span<const int> layers) override;
  // As ParamSource has it. The lease's data are on the device when `ready` is reached. The release
  // of a lease brings the next layer, beside what was enqueued with this one: it waits for the
  // source. An error of that is the next Acquire's, and stays.
  absl::StatusOr<WeightsLease> Acquire(int layer) override;
  // Forgets what was announced and not acquired. The source forgets by itself what it was told.
  void CancelExpected();

  // Announced, and not acquired: of these the next may be on the device already, as it was then.
  int64_t num_expected() const { return announced_.size(); }
  // Whether a lease of the layer is out.
  bool IsLent(int layer) const;
  // Its weights on one of the devices. Requires: a lease of the layer is out.
  LayerWeights WeightsOn(size_t device, int layer) const;
  int64_t copied_bytes() const { return copied_bytes_; }

 protected:
  // `done` outlives this, or the next lease of its place.
  void Release(int layer, Event* done) override;

 private:
  enum class PlaceState : uint8_t { kFree, kStaged, kLent };
  struct Copy {
    DeviceBuffer memory;
    std::unique_ptr<Event> is_there;
    Event* last_read = nullptr;  // when the last lease's readers are done; nullptr: now
  };
  struct Place {
    int64_t size_bytes = 0;
    std::vector<Copy> copies;  // by device
    PlaceState state = PlaceState::kFree;
    LayerWeights weights;  // of the layer, on the first device
    int layer = -1;
  };

  GpuWindow(ParamSource* source, GpuPlaces shape) : source_(source), shape_(std::move(shape)) {}
  absl::Status AddPlace(std::span<Device* const> devices, int64_t place_bytes);
  // nullptr: none that has room is free.
  Place* FreePlaceFor(int layer);
  // Whether no smaller place has room for the layer.
  bool IsItsOwn(const Place& place, int layer) const;
  const Place* LentPlace(int layer) const;
  absl::Status Stage(Place& place, int layer);
  // The layer's bytes from `offset` on.
  absl::Status CopyTo(Place& place, int layer, int64_t offset, std::span<const std::byte> weights);
  void StageAhead();

  ParamSource* const source_;
  const GpuPlaces shape_;
  UsedOnOthers used_on_others_;
  DeviceKind kind_ = DeviceKind::kHost;
  std::vector<std::unique_ptr<Stream>> streams_;  // by device
  std::vector<Place> places_;
  AnnouncedLayers announced_;
  Place* staged_ = nullptr;  // has the next layer; nullptr: none has
  absl::Status failure_;
  int64_t copied_bytes_ = 0;
};

}  // namespace forebay
