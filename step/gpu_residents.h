// Weights of some layers on a GPU for good: a source that lends them from there, and the other
// layers from a source that it is over, a window (gpu_window.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/step/announced_layers.h"
#include "forebay/step/param_source.h"

namespace forebay {

// Owned by one thread.
class GpuResidents final : public ParamSource {
 public:
  // Brings the `layers`, in ascending order, from `loader`, which lends them from host memory and
  // is not asked afterwards. They take as many bytes of `device`, which outlives this. Errors of
  // `loader`; OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<GpuResidents>> Create(std::span<const int> layers,
                                                              ParamSource* loader, Device* device);
  // Before the first Expect, where there are other layers. `others` outlives this.
  void LendOthersFrom(ParamSource* others) { others_ = others; }
  ~GpuResidents() override;

  void Expect(std::span<const int> layers) override;
  absl::StatusOr<WeightsLease> Acquire(int layer) override;

 protected:
  // `done` outlives this.
  void Release(int layer, Event* done) override;

 private:
  struct Resident {
    int layer = -1;
    DeviceBuffer memory;
    LayerWeights weights;
    Event* last_read = nullptr;
  };

  GpuResidents() = default;
  absl::Status Load(int layer, ParamSource* loader, Device* device, Stream& stream);
  Resident* Find(int layer);

  ParamSource* others_ = nullptr;
  std::vector<Resident> residents_;  // by layer, ascending
  AnnouncedLayers announced_;
};

}  // namespace forebay
