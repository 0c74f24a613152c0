// The memory that a step on a GPU takes, there and on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/recompute.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/offload/plan.h"
#include "forebay/step/gpu_window.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// PlanTerm::shrink_with of terms that grow with the tokens of a step.
inline constexpr char kTokensShrinkWith[] = "--batch, --seq or --accum";

// The places of weights there: for the two leases of a pass (the tied output layer), and for one
// layer that is copied ahead.
GpuPlaces GpuPlacesOf(const TrainOptions& options, const Inventory& inventory);
// `plan`: says which activations are where.
CudaDecoderOptions CudaDecoderOptionsOf(const TrainOptions& options, const GpuPlan& plan);

// Whether --device has a GPU compute on this machine.
bool IsForGpu(const TrainOptions& options, const GpuLimits& limits);
// A plan of these terms. EnvironmentError where there is no GPU and no --gpu_mem to plan for one;
// DoesNotFitError that names the largest terms.
absl::StatusOr<GpuPlan> GpuPlanOf(std::vector<GpuTerm> terms, const TrainOptions& options,
                                  const GpuLimits& limits);

// On the CPU: a plan without a device. As many activations stay on the GPU as fit. `recompute`: as
// options have it. EnvironmentError and DoesNotFitError as MakePlan has them.
absl::StatusOr<GpuPlan> MakeGpuPlan(const DecoderConfig& model, const TrainOptions& options,
                                    const Inventory& inventory, const BlockRecompute& recompute,
                                    const GpuLimits& limits);

// Bytes that are left there for the optimizer's state (PlanInputs::device_state_bytes).
int64_t RoomForState(const TrainOptions& options, const GpuPlan& gpu);
// Whether the state that `plan` has there is many times the buffers in RAM that it takes.
bool IsWorthItsBuffers(const OffloadPlan& plan);
// Adds the state that `plan` has placed there.
void AddState(const TrainOptions& options, const OffloadPlan& plan, GpuPlan& gpu);

// Computing there takes these of RAM.
std::vector<PlanTerm> HostTermsOfGpu(const DecoderConfig& model, const TrainOptions& options,
                                     const Inventory& inventory, const GpuPlan& gpu);

}  // namespace forebay
