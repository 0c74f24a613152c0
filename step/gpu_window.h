// Weights on a GPU: a source over another one. It copies the layers that the other lends from host
// memory to places on the GPU, on a stream of its own, one layer ahead of the computation.
//
//   source: Acquire -> copy stream: wait for the last reader of a place, copy, record `copied`
//           -> source: Release(copied) -> Acquire here: a lease that is ready at `copied`
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
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/step/announced_layers.h"
#include "forebay/step/param_source.h"

namespace forebay {

// Owned by one thread.
class GpuWindow final : public ParamSource {
 public:
  // `num_places`: leases that may be out, and one layer that is copied ahead: three at least, for
  // the two leases of ParamSource. `place_bytes`: of the largest layer; each place takes so many on
  // the device. `source` ends before this, as it may wait for its events; `device` outlives this.
  // OutOfMemoryError, EnvironmentError. Requires: num_places >= 3.
  static absl::StatusOr<std::unique_ptr<GpuWindow>> Create(ParamSource* source, Device* device,
                                                           int num_places, int64_t place_bytes) {
    return Create(source, std::span(&device, 1), num_places, place_bytes, {});
  }
  // The same on several. Leases have the weights on the first; when nobody on one of the others
  // reads a layer any more, which is asked when its lease is released, `used` says.
  using UsedOnOthers = std::function<Event*(size_t device, int layer)>;
  static absl::StatusOr<std::unique_ptr<GpuWindow>> Create(ParamSource* source,
                                                           std::span<Device* const> devices,
                                                           int num_places, int64_t place_bytes,
                                                           UsedOnOthers used);
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
    std::vector<Copy> copies;  // by device
    PlaceState state = PlaceState::kFree;
    LayerWeights weights;  // of the layer, on the first device
    int layer = -1;
  };

  explicit GpuWindow(ParamSource* source) : source_(source) {}
  absl::Status AddPlace(std::span<Device* const> devices, int64_t place_bytes);
  Place* FreePlace();
  const Place* LentPlace(int layer) const;
  absl::Status Stage(Place& place, int layer);
  absl::Status CopyTo(Place& place, int layer, std::span<const std::byte> weights);
  void StageAhead();

  ParamSource* const source_;
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
