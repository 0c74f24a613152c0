// A model folder opened for use on a GPU without training, inside two memory budgets: the GPU's,
// and the process's. Weights stay on the GPU as far as they fit beside all else; the others stay in
// RAM as far as they fit there, stream from the folder's files otherwise, and pass through a window
// on the GPU. The CPU's is model_session.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/files/checkpoint_source.h"
#include "forebay/step/gpu_residents.h"
#include "forebay/step/gpu_window.h"
#include "forebay/train/infer/infer_options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// Memory that a computation takes beside the weights.
struct GpuNeeds {
  std::vector<GpuTerm> terms;  // on the GPU
  int64_t host_bytes = 0;
};

// The machine, with its GPU where `options` asks for one.
MachineLimits LimitsFor(const InferOptions& options);
// Whether a GPU computes.
bool IsForGpu(const InferOptions& options, const MachineLimits& limits);
// EnvironmentError and DoesNotFitError as GpuPlanOf has them.
absl::StatusOr<GpuPlan> PlanOnGpu(const InferOptions& options, const MachineLimits& limits,
                                  const DecoderConfig& config, const GpuNeeds& needs);

// Owned by one thread. What is made with its device and budgets ends before it.
class GpuSession {
 public:
  // The errors of PlanOnGpu, and DoesNotFitError that names the least --ram; EnvironmentError.
  static absl::StatusOr<std::unique_ptr<GpuSession>> Open(const InferOptions& options,
                                                          const MachineLimits& limits,
                                                          const DecoderConfig& config,
                                                          const GpuNeeds& needs);
  Device* device() { return device_.get(); }
  MemoryBudget* device_budget() { return &device_budget_; }
  MemoryBudget* host_budget() { return &host_budget_; }

  // The weights: those that stay on the GPU are there, the others are read as they are asked for.
  // They end before whoever computes with them, as they may wait for events of that.
  class Weights {
   public:
    ParamSource& source() { return *residents_; }
    // Those that passed through the window, and those that were read meanwhile.
    int64_t copied_bytes() const { return window_ == nullptr ? 0 : window_->copied_bytes(); }
    int64_t read_bytes() const { return checkpoint_ == nullptr ? 0 : checkpoint_->read_bytes(); }

   private:
    friend class GpuSession;
    // Both nullptr where all weights stay on the GPU.
    std::unique_ptr<GpuWindow> window_;
    std::unique_ptr<CheckpointSource> checkpoint_;  // ends first: it waits for the window's events
    std::unique_ptr<GpuResidents> residents_;
  };
  // Once. Errors of the model folder; OutOfMemoryError, EnvironmentError.
  absl::StatusOr<Weights> OpenWeights();

 private:
  absl::StatusOr<std::unique_ptr<CheckpointSource>> OpenCheckpoint(int64_t max_bytes,
                                                                   std::span<const int> elsewhere);
  GpuSession(const InferOptions& options, const DecoderConfig& config, int64_t device_bytes,
             int64_t host_bytes)
      : options_(options),
        config_(config),
        device_budget_(device_bytes, "--gpu_mem"),
        host_budget_(host_bytes) {}

  const InferOptions options_;
  const DecoderConfig& config_;
  MemoryBudget device_budget_, host_budget_;
  int64_t weight_bytes_ = 0;    // of RAM
  std::vector<int> residents_;  // layers whose weights stay on the GPU
  std::unique_ptr<Device> device_;
};

}  // namespace forebay
