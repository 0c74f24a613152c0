#include "forebay/train/infer/gpu_session.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/memory/address_space.h"
#include "forebay/step/spread_layers.h"
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

int64_t WeightBytesOf(const LayerSpec& layer, DType dtype) {
  return layer.num_elems * SizeOf(dtype);
}

// The layers whose weights stay on the GPU, where `spare_bytes` are left beside a window of
// `window_bytes`: all of them, in place of the window, where they fit; else the first and the last
// layer, and blocks in the rest. Ascending.
std::vector<int> ResidentLayers(const Inventory& inventory, DType dtype, int64_t spare_bytes,
                                int64_t window_bytes) {
  const std::vector<LayerSpec>& layers = inventory.layers();
  std::vector<int> all(layers.size());
  std::iota(all.begin(), all.end(), 0);
  int64_t all_bytes = 0;
  for (const LayerSpec& layer : layers) all_bytes += WeightBytesOf(layer, dtype);
  if (all_bytes <= spare_bytes + window_bytes) return all;
  std::vector<int> stay;
  for (const int layer : {all.front(), all.back()}) {
    const int64_t bytes = WeightBytesOf(layers[static_cast<size_t>(layer)], dtype);
    if (bytes > spare_bytes) continue;
    stay.push_back(layer);
    spare_bytes -= bytes;
  }
  const std::span<const int> blocks = std::span(all).subspan(1, all.size() - 2);
  std::ranges::copy(SpreadEvenly(blocks, spare_bytes / WeightBytesOf(layers[1], dtype)),
                    std::back_inserter(stay));
  std::ranges::sort(stay);
  return stay;
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
  const GpuPlaces places = GpuPlacesOf(of_run, BuildInventory(config));
  terms.push_back(
      {fmt::format("weights of {} layers", places.place_bytes.size()), places.TotalBytes(), ""});
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
  const Inventory inventory = BuildInventory(config);
  session->residents_ =
      ResidentLayers(inventory, dtype, plan.budget_bytes - plan.bytes,
                     GpuPlacesOf(PlannerOptions(options), inventory).TotalBytes());
  FOREBAY_RETURN_IF_ERROR(session->host_budget_.Charge("program", kRuntimeBytes));
  FOREBAY_ASSIGN_OR_RETURN(session->device_, CreateCudaDevice(0));
  return session;
}

absl::StatusOr<std::unique_ptr<CheckpointSource>> GpuSession::OpenCheckpoint(
    int64_t max_bytes, std::span<const int> elsewhere) {
  return CheckpointSource::Create(options_.model, config_, cpu::WeightDType(options_.precision),
                                  max_bytes, &host_budget_, device_.get(), elsewhere);
}

absl::StatusOr<GpuSession::Weights> GpuSession::OpenWeights() {
  const Inventory inventory = BuildInventory(config_);
  const DType dtype = cpu::WeightDType(options_.precision);
  for (const int layer : residents_) {
    FOREBAY_RETURN_IF_ERROR(device_budget_.Charge(
        "weights that stay on the GPU",
        WeightBytesOf(inventory.layers()[static_cast<size_t>(layer)], dtype)));
  }
  Weights weights;
  {
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointSource> loader,
                             OpenCheckpoint(CheckpointSource::LeastBytes(config_, dtype), {}));
    FOREBAY_ASSIGN_OR_RETURN(weights.residents_,
                             GpuResidents::Create(residents_, loader.get(), device_.get()));
  }
  if (std::ssize(residents_) == inventory.num_layers()) return weights;

  FOREBAY_ASSIGN_OR_RETURN(weights.checkpoint_, OpenCheckpoint(weight_bytes_, residents_));
  const GpuPlaces places = GpuPlacesOf(PlannerOptions(options_), inventory);
  FOREBAY_RETURN_IF_ERROR(device_budget_.Charge("weights on the GPU", places.TotalBytes()));
  FOREBAY_ASSIGN_OR_RETURN(weights.window_,
                           GpuWindow::Create(weights.checkpoint_.get(), device_.get(), places));
  weights.residents_->LendOthersFrom(weights.window_.get());
  return weights;
}

}  // namespace forebay
