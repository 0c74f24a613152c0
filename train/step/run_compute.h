// A run's layers are computed by the CPU, with weights of the layer session, or by GPUs, with a
// window over them. With --data_parallel each part of the rows is computed apart
// (train/step/divided_compute.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/process/parallel.h"
#include "forebay/device/device.h"
#include "forebay/device/matmul_algorithms.h"
#include "forebay/device/stream_trace.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/offload/layer_session.h"
#include "forebay/step/activation_storage.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/param_source.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// Owned by the training thread. Made before the layer session, and ends behind it, as that may wait
// for events of the computation.
class RunCompute {
 public:
  // Where the plan has it computed. `budget`, the process's, outlives it. `algorithms` (nullptr:
  // none) are used and completed where that is a GPU (CreateCudaDecoder). OutOfMemoryError,
  // EnvironmentError.
  static absl::StatusOr<std::unique_ptr<RunCompute>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            MemoryBudget* budget,
                                                            MatmulAlgorithms* algorithms);
  virtual ~RunCompute() = default;

  // For LayerSessionOptions; nullptr: the session's own, and the host.
  virtual ThreadPool* pool() { return nullptr; }
  virtual Device* device() { return nullptr; }
  virtual MemoryBudget* device_budget() { return nullptr; }
  // Those of all its GPUs, where --trace wants them.
  virtual std::vector<StreamTrace*> stream_traces() { return {}; }
  // Once, before the calls below. OutOfMemoryError, EnvironmentError.
  virtual absl::Status Attach(LayerSession* layers) = 0;
  // Before the layer session ends: nothing is copied from or to its memory any more.
  virtual void Detach() {}

  virtual LayerCompute& compute() = 0;
  virtual ParamSource& source() = 0;
  // Where the plan's operations spill activations; nullptr: they spill none.
  virtual ActivationStorage* activations() = 0;
  // The most that a pass may have which keeps no activation.
  virtual int64_t most_forward_tokens() const = 0;
  // "onednn 2.6.3 avx2 fp32-widened": recorded in runs.
  virtual std::string kernel_identity() = 0;
};

}  // namespace forebay
