// The types forebay_layers and forebay_lease.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_status.h"
#include "forebay/offload/embedded_run.h"

namespace forebay::capi {

// The scalars of a step, as they are when the norm is known.
struct StepSettings {
  double clip = 0;
  double loss_scale = 1;
};

// Shared by forebay_layers and its leases, so that the last of them ends it.
class LayersState {
 public:
  LayersState(std::unique_ptr<EmbeddedRun> run, OptimizerKind optimizer, int num_groups)
      : run_(std::move(run)), optimizer_(optimizer), num_groups_(num_groups) {}

  // For one call: others wait. Leases that ended meanwhile are given back first.
  class Call {
   public:
    explicit Call(LayersState& state) : lock_(state.mutex_) { state.EndReleased(); }

   private:
    std::lock_guard<std::mutex> lock_;
  };

  // ---- Any thread.
  EmbeddedRun& run() { return *run_; }
  // Gives a lease back now, or where a call is under way, before the next one.
  void Release(WeightsLease lease);

  // ---- In a Call.
  // UsageError: create or open was not called.
  absl::StatusOr<LayerSession*> Session();
  absl::Status BeginStep(const forebay_step_options& options);
  absl::Status SetStep(const forebay_step_options& options);
  absl::StatusOr<StepGradients> FinishBackward();
  absl::Status EndStep(Json user, CommitWhen when, bool is_update);
  // `user`: in place of that of the step; nullopt: that.
  absl::Status Commit(std::optional<Json> user);
  absl::Status Open();
  absl::Status Start(Json user);
  absl::StatusOr<Json> CommittedUser();
  absl::StatusOr<int64_t> UpdatesOf(int tensor);
  double loss_scale() const { return settings_.loss_scale; }

 private:
  static absl::StatusOr<StepSettings> SettingsOf(const forebay_step_options& options);
  absl::StatusOr<std::vector<ParameterGroup>> GroupsOf(const forebay_step_options& options) const;
  UpdateScalars ScalarsAt(double norm) const;
  void EndReleased();

  std::mutex mutex_;
  std::mutex released_mutex_;
  const std::unique_ptr<EmbeddedRun> run_;
  std::vector<WeightsLease> released_;  // behind run_, so that they end before it
  const OptimizerKind optimizer_;
  const int num_groups_;
  StepSettings settings_;
  int64_t num_skipped_ = 0;  // steps that were no updates, of the released ones
};

// A lease, while any of its owners (the caller, and DLPack tensors) is left.
class SharedLease {
 public:
  SharedLease(std::shared_ptr<LayersState> state, WeightsLease lease)
      : state_(std::move(state)), lease_(std::move(lease)) {}
  ~SharedLease() { state_->Release(std::move(lease_)); }
  SharedLease(const SharedLease&) = delete;
  SharedLease& operator=(const SharedLease&) = delete;

  const WeightsLease& lease() const { return lease_; }
  // nullptr: the tensor is of another layer.
  const TensorSpec* Find(int tensor) const;
  const std::byte* DataOf(const TensorSpec& tensor) const;

 private:
  const std::shared_ptr<LayersState> state_;
  WeightsLease lease_;
};

}  // namespace forebay::capi

struct forebay_layers {
  std::shared_ptr<forebay::capi::LayersState> state;
};

struct forebay_lease {
  std::shared_ptr<forebay::capi::SharedLease> shared;
};

namespace forebay::capi {

// body(state) as one call on layers.
template <typename Body>
int32_t RunOn(forebay_layers* layers, char** message, const Body& body) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(layers, "layers"));
    const LayersState::Call call(*layers->state);
    return body(*layers->state);
  });
}

}  // namespace forebay::capi
