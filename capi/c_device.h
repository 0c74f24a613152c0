// Leases of layers on a CUDA device: the window there, the streams of the caller that use it, and
// gradients that come from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/device/device.h"
#include "forebay/offload/layer_session.h"
#include "forebay/step/gpu_window.h"

namespace forebay::capi {

// Used by one thread at a time, but for MakeReady and EndUses, which are thread-safe. Outlives the
// session, which may wait for its events, and its leases end before it.
class DeviceLeases {
 public:
  // A window of `num_places` layers, for weights of `dtype`. Takes no memory yet. EnvironmentError:
  // this build has no CUDA, or there is no such device. DoesNotFitError: it has too little memory.
  static absl::StatusOr<std::unique_ptr<DeviceLeases>> Create(int index, int num_places,
                                                              const Inventory& inventory,
                                                              DType dtype);

  Device* device() const { return device_.get(); }
  int index() const { return index_; }
  // The window takes so many on the device.
  int64_t device_bytes() const { return num_places_ * place_bytes_; }
  // A gradient passes through so many in RAM (AddGradient).
  int64_t staging_bytes() const { return staging_bytes_; }
  int64_t copied_bytes() const { return window_ == nullptr ? 0 : window_->copied_bytes(); }
  std::vector<int> LentLayers() const;

  // Takes the memory on the device, if it was not. OutOfMemoryError, EnvironmentError.
  absl::Status Open(LayerSession& session);
  // As LayerSession has them. A layer that is lent is a UsageError.
  void Expect(std::span<const int> layers) { window_->Expect(layers); }
  void CancelExpected();
  // UsageError: layers are announced, so that one may be on the device that `call` makes stale.
  absl::Status CheckNothingIsExpected(std::string_view call) const;
  struct Lent {
    WeightsLease weights;
    Event* used = nullptr;  // for EndUses; of the lease's place
  };
  absl::StatusOr<Lent> Acquire(int layer);

  // Has `native_stream` wait for the weights.
  absl::Status MakeReady(const LayerWeights& weights, void* native_stream);
  // Has `used` be reached when all work is done that these streams have so far. An error is also
  // that of the next Acquire: nobody knows when the place can be written to.
  void EndUses(std::span<void* const> native_streams, Event& used);

  // As LayerSession::AddGradient, of memory on the device that `native_stream` has written, by way
  // of `staging`: of staging_bytes(), pinned, and the same in every call. The copy goes on behind
  // the call; what `native_stream` is given later waits for it. The gradient is added by the next
  // call, or by LandGradient, and what can refuse it does so here.
  absl::Status AddGradient(LayerSession& session, int tensor, DType dtype, const void* data,
                           size_t num_bytes, void* native_stream, std::span<std::byte> staging);
  // Waits for the last one, and adds it.
  absl::Status LandGradient(LayerSession& session);
  // Waits for it, and adds nothing: its step is abandoned. Afterwards nobody writes to `staging`.
  void DropGradient();

 private:
  DeviceLeases(std::unique_ptr<Device> device, int index, int num_places)
      : device_(std::move(device)), index_(index), num_places_(num_places) {}
  // A gradient that is copied to RAM.
  struct OnItsWay {
    int tensor = -1;  // -1: none is
    DType dtype = DType::kF32;
    std::span<std::byte> place;  // in the staging memory
    int number = 0;              // of its event
  };
  absl::StatusOr<Event*> UsedEventOf(const LayerWeights& weights);
  absl::Status Failure() const;
  absl::Status Land(const OnItsWay& gradient, LayerSession& session);

  const std::unique_ptr<Device> device_;
  const int index_;
  const int num_places_;
  int64_t place_bytes_ = 0;
  int64_t staging_bytes_ = 0;
  int num_layers_ = 0;

  mutable std::mutex ends_mutex_;
  std::unique_ptr<Stream> ends_;  // meets the streams of a lease that several have used
  absl::Status failure_;          // of EndUses

  std::unique_ptr<Stream> gradients_;
  std::unique_ptr<Event> gradient_is_made_;
  std::array<std::unique_ptr<Event>, 2> gradient_is_copied_;  // in turn
  OnItsWay on_its_way_;
  // By the address of its place; behind them the window, which waits for them.
  std::vector<std::pair<const std::byte*, std::unique_ptr<Event>>> used_;
  std::unique_ptr<GpuWindow> window_;
};

}  // namespace forebay::capi
