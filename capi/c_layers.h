// The types forebay_layers and forebay_lease.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_device.h"
#include "forebay/capi/c_ranks.h"
#include "forebay/capi/c_status.h"
#include "forebay/capi/dlpack.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/offload/embedded/embedded_run.h"

namespace forebay::capi {

// The scalars of a step, as they are when the norm is known.
struct StepSettings {
  double clip = 0;
  double loss_scale = 1;
};

// Shared by forebay_layers and its leases, so that the last of them ends it.
class LayersState {
 public:
  // `ranks`: nullptr: this process is alone. `device`: nullptr: leases are in RAM.
  LayersState(std::shared_ptr<RanksState> ranks, std::unique_ptr<DeviceLeases> device,
              std::unique_ptr<EmbeddedRun> run, OptimizerKind optimizer, int num_groups)
      : ranks_(std::move(ranks)),
        device_(std::move(device)),
        run_(std::move(run)),
        optimizer_(optimizer),
        num_groups_(num_groups) {}

  ~LayersState() {
    if (device_ != nullptr) device_->DropGradient();
    const std::unique_lock lock = LockRanks();
    released_.clear();
    staging_ = {};
    run_.reset();
  }
  LayersState(const LayersState&) = delete;
  LayersState& operator=(const LayersState&) = delete;

  // For one call: others wait. Leases that ended meanwhile are given back first.
  class Call {
   public:
    explicit Call(LayersState& state)
        : state_(state), lock_(state.mutex_), ranks_(state.LockRanks()) {
      state.caller_ = std::this_thread::get_id();
      state.EndReleased();
    }
    ~Call() { state_.caller_ = std::thread::id(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    LayersState& state_;
    std::lock_guard<std::mutex> lock_;
    std::unique_lock<std::mutex> ranks_;
  };

  // ---- Any thread.
  EmbeddedRun& run() { return *run_; }
  DeviceLeases* device() const { return device_.get(); }
  // Gives a lease back now, or where a call is under way, before the next one. `done`: as
  // WeightsLease::Release has it.
  void Release(WeightsLease lease, Event* done);

  // ---- In a Call.
  // UsageError: create or open was not called.
  absl::StatusOr<LayerSession*> Session();
  // As DeviceLeases has it. UsageError: leases are in RAM.
  absl::Status AddDeviceGradient(int tensor, DType dtype, const void* data, size_t num_bytes,
                                 void* native_stream);
  // As LayerSession has them, behind what came from the device.
  absl::Status AddGradient(int tensor, DType dtype, std::span<const std::byte> elems);
  absl::Status CloseLayer(int layer);
  absl::Status Expect(std::span<const int> layers);
  absl::Status CancelExpected();
  absl::StatusOr<DeviceLeases::Lent> Acquire(int layer);
  absl::Status Abandon();
  absl::Status BeginStep(const forebay_step_options& options);
  absl::Status SetStep(const forebay_step_options& options);
  absl::StatusOr<StepGradients> FinishBackward();
  absl::Status EndStep(Json user, CommitWhen when, bool is_update);
  // `user`: in place of that of the step; nullopt: that.
  absl::Status Commit(std::optional<Json> user);
  absl::Status CommitOnceApplied(std::optional<Json> user);
  absl::Status Open();
  absl::Status CreateFrom(const std::vector<std::string>& folders);
  absl::Status Start(Json user);
  absl::StatusOr<Json> CommittedUser();
  absl::StatusOr<int64_t> UpdatesOf(int tensor);
  double loss_scale() const { return settings_.loss_scale; }
  // An error behind which this rank does not go on as the others do: they are told.
  void TellRanks(const absl::Status& error);

 private:
  static absl::StatusOr<StepSettings> SettingsOf(const forebay_step_options& options);
  absl::StatusOr<std::vector<ParameterGroup>> GroupsOf(const forebay_step_options& options) const;
  UpdateScalars ScalarsAt(double norm) const;
  void EndReleased();
  std::unique_lock<std::mutex> LockRanks() {
    return ranks_ == nullptr ? std::unique_lock<std::mutex>()
                             : std::unique_lock<std::mutex>(ranks_->mutex);
  }
  // By which the sum of the gradients of all ranks is divided.
  double Divisor() const { return settings_.loss_scale * run_->num_ranks(); }
  absl::Status OpenDevice();
  absl::Status TakeCommit();  // of the store that was opened
  absl::Status LandGradient();
  absl::Status CheckNothingIsExpected(std::string_view call) const;

  struct Released {
    WeightsLease lease;
    Event* done;
  };

  std::mutex mutex_;
  std::atomic<std::thread::id> caller_;  // whose Call has the mutex
  std::mutex released_mutex_;
  // In this order, so that each is destroyed before what it uses.
  const std::shared_ptr<RanksState> ranks_;
  const std::unique_ptr<DeviceLeases> device_;
  std::unique_ptr<EmbeddedRun> run_;
  HostBuffer staging_;  // of gradients from the device
  std::vector<Released> released_;
  const OptimizerKind optimizer_;
  const int num_groups_;
  StepSettings settings_;
  int64_t num_skipped_ = 0;  // steps that were no updates, of the released ones
};

// A lease, while any of its owners (the caller, and DLPack tensors) is left.
class SharedLease {
 public:
  SharedLease(std::shared_ptr<LayersState> state, DeviceLeases::Lent lent)
      : state_(std::move(state)), lease_(std::move(lent.weights)), used_(lent.used) {}
  ~SharedLease();
  SharedLease(const SharedLease&) = delete;
  SharedLease& operator=(const SharedLease&) = delete;

  const WeightsLease& lease() const { return lease_; }
  // nullptr: the tensor is of another layer.
  const TensorSpec* Find(int tensor) const;
  const std::byte* DataOf(const TensorSpec& tensor) const;
  DLDevice device() const;
  // As forebay_lease_ready.
  absl::Status MakeReady(void* native_stream);

 private:
  const std::shared_ptr<LayersState> state_;
  WeightsLease lease_;
  Event* const used_;  // nullptr: the lease is in RAM
  std::mutex streams_mutex_;
  std::vector<void*> streams_;  // that use it
};

}  // namespace forebay::capi

struct forebay_layers : forebay::capi::Handle {
  std::shared_ptr<forebay::capi::LayersState> state;
};

struct forebay_lease : forebay::capi::Handle {
  std::shared_ptr<forebay::capi::SharedLease> shared;
};

namespace forebay::capi {

// body(state) as one call on layers.
template <typename Body>
int32_t RunOn(forebay_layers* layers, char** message, const Body& body) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(layers, "layers"));
    const LayersState::Call call(*layers->state);
    absl::Status status = body(*layers->state);
    if (!status.ok()) layers->state->TellRanks(status);
    return status;
  });
}

}  // namespace forebay::capi
