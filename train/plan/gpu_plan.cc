#include "forebay/train/plan/gpu_plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/offload/largest_term.h"
#include "forebay/offload/ranks/part_gradients.h"
#include "forebay/optimizer/device_state.h"
#include "forebay/optimizer/gradient_landing.h"

namespace forebay {
namespace {

int64_t LargestLayerElems(const Inventory& inventory) {
  int64_t largest = 0;
  for (const LayerSpec& layer : inventory.layers()) largest = std::max(largest, layer.num_elems);
  return largest;
}

// The elements of a gradient that come from the GPU at one time.
int64_t LandingElems(const Inventory& inventory) {
  std::vector<int64_t> layer_elems;
  for (const LayerSpec& layer : inventory.layers()) layer_elems.push_back(layer.num_elems);
  return GradientLanding::PartElems(std::move(layer_elems));
}

absl::Status CheckRecompute(const TrainOptions& options) {
  if (options.recompute.value_or(Recompute::kAll) == Recompute::kAll &&
      options.recompute_layers == 0) {
    return absl::OkStatus();
  }
  return UsageError(
      "on a GPU all layers compute all again: --recompute=attention, --recompute=none and "
      "--set=recompute_layers are for the CPU. Use --recompute=auto --set=recompute_layers=0, or "
      "--device=cpu");
}

absl::StatusOr<int64_t> BudgetOf(const TrainOptions& options, const GpuLimits& limits) {
  if (limits.name.empty()) {
    if (options.gpu_mem_bytes > 0) return options.gpu_mem_bytes;  // a plan for another machine
    return EnvironmentError(fmt::format(
        "--device=cuda: {}. Use --device=cpu; to plan for a GPU that is elsewhere, give --gpu_mem",
        limits.why_none));
  }
  if (options.gpu_mem_bytes > limits.free_bytes) {
    return DoesNotFitError(
        fmt::format("--gpu_mem={} is more than the {} that are free on {}. Ask for less, or end "
                    "what uses it",
                    FormatBinaryBytes(options.gpu_mem_bytes), FormatBinaryBytes(limits.free_bytes),
                    limits.name));
  }
  if (options.gpu_mem_bytes > 0) return options.gpu_mem_bytes;
  return static_cast<int64_t>(kAutoGpuShare * static_cast<double>(limits.free_bytes));
}

// Without terms.
absl::StatusOr<GpuPlan> PlanWithBudget(const TrainOptions& options, const GpuLimits& limits) {
  GpuPlan plan;
  if (!limits.has_bf16 && options.precision == cpu::Precision::kBf16) {
    return EnvironmentError(fmt::format(
        "{} does not multiply in bf16, as cards of compute capability 8.0 and more do. Use "
        "--precision=fp16, or --device=cpu",
        limits.name));
  }
  FOREBAY_ASSIGN_OR_RETURN(plan.budget_bytes, BudgetOf(options, limits));
  plan.device = limits.name.empty() ? "a GPU that is not here" : limits.name;
  return plan;
}

void SumUp(GpuPlan& plan) {
  plan.bytes = std::transform_reduce(plan.terms.begin(), plan.terms.end(), int64_t{0},
                                     std::plus<>(), [](const GpuTerm& term) { return term.bytes; });
}

void SetTerms(const DecoderConfig& model, const TrainOptions& options, const Inventory& inventory,
              GpuPlan& plan) {
  const CudaDecoderMemory memory = CudaDecoderMemoryFor(model, CudaDecoderOptionsOf(options, plan));
  // The layers of a long segment take more buffers than activations that come and go need.
  const bool is_long = plan.segment_layers > kActivationStorageBuffers;
  const GpuPlaces places = GpuPlacesOf(options, inventory);
  plan.terms = {
      {fmt::format("weights of {} layers", places.place_bytes.size()), places.TotalBytes(), ""},
      {"activation checkpoints", memory.activation_bytes,
       is_long ? "--batch, --seq, --accum or a larger --set=number_checkpoints"
               : kTokensShrinkWith},
      {"decoder workspace", memory.workspace_bytes, "--batch or --seq"},
      {"gradients of layers (fp32)", memory.gradient_bytes, ""},
      {"tokens of a step", memory.micro_batch_bytes, kTokensShrinkWith},
  };
  // Ranks round their sum, in RAM.
  if (options.num_ranks == 1) {
    plan.terms.push_back({"rounded gradient of a layer",
                          GradientLanding::DeviceBytes(options.grad_dtype, LandingElems(inventory)),
                          ""});
  }
  // On the first GPU; all have the same budget.
  if (options.data_parallel > 1) {
    plan.terms.push_back(
        {"sum of the gradients of parts (fp32)",
         GpuPartGradients::DeviceBytes(options.data_parallel, LargestLayerElems(inventory)), ""});
  }
  SumUp(plan);
}

// PlanTerm::shrink_with of activations that wait in RAM.
std::string SpilledShrinkWith(const GpuPlan& plan) {
  if (plan.segment_layers > 1) return "--batch, --seq, --accum or a larger --gpu_mem";
  // On disk they take less of RAM only where not each has a buffer there.
  return plan.num_spilled_activations > kActivationStorageBuffers
             ? "--batch, --seq, --accum, --set=activations_tier=nvme, --set=number_checkpoints or "
               "a larger "
               "--gpu_mem"
             : "--batch, --seq, --accum, --set=number_checkpoints or a larger --gpu_mem";
}

absl::Status DoesNotFit(const GpuPlan& plan) {
  std::vector<GpuTerm> terms = plan.terms;
  std::ranges::stable_sort(terms, std::ranges::greater{}, &GpuTerm::bytes);
  std::string largest;
  for (const GpuTerm& term : terms) {
    largest += fmt::format("\n  {:<34}{:>10}{}", term.name, FormatBinaryBytes(term.bytes),
                           term.shrink_with.empty() ? "" : "   smaller with " + term.shrink_with);
  }
  const absl::Status error = DoesNotFitError(fmt::format(
      "the GPU's part of this run needs {0} MiB, and its budget is {1}: {2} are missing. Use "
      "--gpu_mem={0}MiB or more where the card has it, or less of:{3}",
      MebibytesUp(plan.bytes), FormatBinaryBytesDown(plan.budget_bytes),
      FormatBinaryBytes(plan.bytes - plan.budget_bytes), largest));
  return WithLargestTerm(
      error, fmt::format("{} {}", terms.front().name, FormatBinaryBytes(terms.front().bytes)),
      plan.bytes, MemoryOf::kGpu);
}

}  // namespace

GpuPlaces GpuPlacesOf(const TrainOptions& options, const Inventory& inventory) {
  return PlacesOfChain(inventory, cpu::WeightDType(options.precision));
}

CudaDecoderOptions CudaDecoderOptionsOf(const TrainOptions& options, const GpuPlan& plan) {
  return {.dtype = cpu::WeightDType(options.precision),
          .tf32 = options.tf32,
          .max_tokens = options.batch * options.seq,
          .step_tokens = options.batch * options.accum * options.seq,
          .num_batches = options.accum,
          .segment_layers = plan.segment_layers,
          .num_spilled_activations = plan.num_spilled_activations,
          .spills_to_storage = plan.spills_to_storage,
          .shares_gradients = plan.shares_gradients,
          .vocabulary_in_parts = plan.vocabulary_in_parts};
}

bool IsForGpu(const TrainOptions& options, const GpuLimits& limits) {
  if (options.device == ComputeDevice::kAuto) return !limits.name.empty();
  return options.device == ComputeDevice::kCuda;
}

absl::StatusOr<GpuPlan> GpuPlanOf(std::vector<GpuTerm> terms, const TrainOptions& options,
                                  const GpuLimits& limits) {
  FOREBAY_ASSIGN_OR_RETURN(GpuPlan plan, PlanWithBudget(options, limits));
  plan.terms = std::move(terms);
  SumUp(plan);
  if (plan.bytes > plan.budget_bytes) return DoesNotFit(plan);
  return plan;
}

absl::StatusOr<GpuPlan> MakeGpuPlan(const DecoderConfig& model, const TrainOptions& options,
                                    const Inventory& inventory, const BlockRecompute& recompute,
                                    const GpuLimits& limits) {
  if (!IsForGpu(options, limits)) return GpuPlan();
  FOREBAY_RETURN_IF_ERROR(CheckRecompute(options));
  FOREBAY_ASSIGN_OR_RETURN(GpuPlan plan, PlanWithBudget(options, limits));
  plan.segment_layers = recompute.segment_blocks;
  plan.vocabulary_in_parts = recompute.vocabulary_in_parts;
  plan.spills_to_storage = options.activations_tier == ActivationsTier::kNvme;
  const int most_spilled = MostSpilledActivations(ChainOf(model, recompute));
  for (const bool shares_gradients : {false, true}) {
    if (shares_gradients && (model.tied_embeddings || plan.vocabulary_in_parts)) break;
    plan.shares_gradients = shares_gradients;
    for (int num_spilled = 0; num_spilled <= most_spilled; ++num_spilled) {
      plan.num_spilled_activations = num_spilled;
      SetTerms(model, options, inventory, plan);
      if (plan.bytes <= plan.budget_bytes) return plan;
    }
  }
  return DoesNotFit(plan);
}

int64_t RoomForState(const TrainOptions& options, const GpuPlan& gpu) {
  if (gpu.device.empty()) return 0;
  // No tile is larger.
  const int64_t work_bytes =
      DeviceState::WorkBytes(options.tile_elems * WeightBytesPerElem(options.layout),
                             options.tile_elems, options.grad_dtype);
  return std::max<int64_t>(gpu.budget_bytes - gpu.bytes - work_bytes, 0);
}

bool IsWorthItsBuffers(const OffloadPlan& plan) {
  constexpr int64_t kLeastPerByte = 10;
  return plan.placement.device_state_bytes >= kLeastPerByte * DeviceState::ChargedBytes(plan.tiles);
}

void AddState(const TrainOptions& options, const OffloadPlan& plan, GpuPlan& gpu) {
  if (!plan.placement.AnyOnDevice()) return;
  gpu.terms.push_back(
      {"optimizer state",
       plan.placement.device_state_bytes + DeviceState::WorkBytes(plan.tiles, options.grad_dtype),
       "--state_tier=host"});
  SumUp(gpu);
}

std::vector<PlanTerm> HostTermsOfGpu(const DecoderConfig& model, const TrainOptions& options,
                                     const Inventory& inventory, const GpuPlan& gpu) {
  const int64_t num_gpus = options.data_parallel;
  const int64_t batches = num_gpus * CudaDecoderHostBytes(model, CudaDecoderOptionsOf(options, {}));
  const int64_t all = num_gpus * CudaDecoderHostBytes(model, CudaDecoderOptionsOf(options, gpu));
  std::vector<PlanTerm> terms;
  if (options.num_ranks == 1) {
    terms.push_back({"gradients from the GPU",
                     GradientLanding::ChargedBytes(options.grad_dtype, LandingElems(inventory)), 0,
                     ""});
  }
  if (num_gpus > 1) {
    terms.push_back(
        {"gradients of the other GPUs (fp32)",
         GpuPartGradients::ChargedBytes(options.data_parallel, LargestLayerElems(inventory)), 0,
         ""});
  }
  terms.push_back({"micro-batches for the GPU", batches, 0, kTokensShrinkWith});
  if (all > batches) {
    terms.push_back(
        {fmt::format("activations of {} layers, of the GPU", gpu.num_spilled_activations),
         all - batches, 0, SpilledShrinkWith(gpu)});
  }
  return terms;
}

}  // namespace forebay
