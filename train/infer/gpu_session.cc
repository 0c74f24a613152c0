#include "forebay/train/infer/gpu_session.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/memory/address_space.h"
#include "forebay/train/infer/model_session.h"
#include "forebay/train/plan/gpu_plan.h"

namespace forebay {
namespace {

// The same in the words of a run's planner.
TrainOptions PlannerOptions(const InferOptions& options) {
  TrainOptions of_run;
  of_run.device = options.device;
  of_run.gpu_mem_bytes = options.gpu_mem_bytes;
  of_run.precision = options.precision;
  return of_run;
}

}  // namespace

MachineLimits LimitsFor(const InferOptions& options) {
  return AskMachine(PlannerOptions(options));
}

bool IsForGpu(const InferOptions& options, const MachineLimits& limits) {
  return IsForGpu(PlannerOptions(options), limits.gpu);
}

absl::StatusOr<GpuPlan> PlanOnGpu(const InferOptions& options, const MachineLimits& limits,
                                  const DecoderConfig& config, const GpuNeeds& needs) {
  const TrainOptions of_run = PlannerOptions(options);
  std::vector<GpuTerm> terms = needs.terms;
  terms.push_back({fmt::format("weights of {} layers", kGpuPlaces),
                   kGpuPlaces * GpuPlaceBytes(of_run, BuildInventory(config)), ""});
  return GpuPlanOf(std::move(terms), of_run, limits.gpu);
}

absl::StatusOr<std::unique_ptr<GpuSession>> GpuSession::Open(const InferOptions& options,
                                                             const MachineLimits& limits,
                                                             const DecoderConfig& config,
                                                             const GpuNeeds& needs) {
  FOREBAY_ASSIGN_OR_RETURN(const GpuPlan plan, PlanOnGpu(options, limits, config, needs));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t ram_bytes, RamBudget(options.ram_bytes, limits));
  const DType dtype = cpu::WeightDType(options.precision);
  const int64_t fixed = kRuntimeBytes + needs.host_bytes;
  FOREBAY_RETURN_IF_ERROR(
      CheckModelFits(fixed + CheckpointSource::LeastBytes(config, dtype), ram_bytes));
  const int64_t all_weights = BuildInventory(config).num_padded_elems() * SizeOf(dtype);
  FOREBAY_RETURN_IF_ERROR(CheckAddressSpace(
      needs.host_bytes +
          std::min(ram_bytes - fixed, all_weights + CheckpointSource::LeastBytes(config, dtype)),
      /*num_threads=*/1));

  std::unique_ptr<GpuSession> session(
      new GpuSession(options, config, plan.budget_bytes, ram_bytes));
  session->weight_bytes_ = ram_bytes - fixed;
  FOREBAY_RETURN_IF_ERROR(session->host_budget_.Charge("program", kRuntimeBytes));
  FOREBAY_ASSIGN_OR_RETURN(session->device_, CreateCudaDevice(0));
  return session;
}

absl::StatusOr<GpuSession::Weights> GpuSession::OpenWeights() {
  const int64_t place_bytes = GpuPlaceBytes(PlannerOptions(options_), BuildInventory(config_));
  Weights weights;
  FOREBAY_ASSIGN_OR_RETURN(
      weights.checkpoint_,
      CheckpointSource::Create(options_.model, config_, cpu::WeightDType(options_.precision),
                               weight_bytes_, &host_budget_, device_.get()));
  FOREBAY_RETURN_IF_ERROR(device_budget_.Charge("weights on the GPU", kGpuPlaces * place_bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      weights.window_,
      GpuWindow::Create(weights.checkpoint_.get(), device_.get(), kGpuPlaces, place_bytes));
  return weights;
}

}  // namespace forebay
