#include "forebay/train/plan/plan.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_flops.h"
#include "forebay/offload/ranks/gathered_weights.h"
#include "forebay/offload/ranks/gradient_sum.h"
#include "forebay/offload/ranks/part_gradients.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/train/export/export_weights.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/options/traced_steps.h"
#include "forebay/train/plan/choose_settings.h"
#include "forebay/train/plan/gpu_plan.h"
#include "forebay/train/plan/write_budget.h"

namespace forebay {
namespace {

// Tokens, targets, positions and flags of a packed row while it is a MicroBatch; segments are few.
constexpr int64_t kBatchBytesPerToken = 16;

// Counts those of all parts of this process.
int64_t StepTokens(const TrainOptions& options) {
  return options.data_parallel * options.batch * options.accum * options.seq;
}

absl::Status CheckPositions(const DecoderConfig& model, const TrainOptions& options) {
  if (options.seq <= model.max_positions) return absl::OkStatus();
  // Whether the data is packed in rows of that length is not looked up: a plan opens no file.
  const std::string packed = options.data.empty()
                                 ? ""
                                 : fmt::format(
                                       ". If '{}' is packed in such rows: pack its text again "
                                       "with --seq={} or less",
                                       options.data, model.max_positions);
  return UsageError(
      fmt::format("--seq={} is more than the {} positions of the model; use --seq={} or less{}",
                  options.seq, model.max_positions, model.max_positions, packed));
}

// OUT/model, and what --save_every keeps beside it. One more is written before the oldest goes.
int64_t NumExports(const TrainOptions& options) {
  if (options.export_format == ExportFormat::kNone) return 0;
  if (options.save_every == 0) return 1;
  int64_t beside = options.keep + 1;
  if (options.steps > 0) beside = std::min(beside, options.steps / options.save_every);
  return 1 + beside;
}

int64_t OneExportBytes(const TrainOptions& options, const Inventory& inventory) {
  return inventory.num_params() * SizeOf(options.export_dtype);
}

// A run that continues has some of them. The next one is whole before it takes the place of
// another.
int64_t ExportsToCome(const TrainOptions& options, const Inventory& inventory,
                      const MachineLimits& limits) {
  if (options.export_format == ExportFormat::kNone) return 0;
  const int64_t one = OneExportBytes(options, inventory);
  const int64_t missing = std::max(NumExports(options) * one - limits.exported_bytes, one);
  return (missing + one - 1) / one;
}

PlannedExports ExportsOf(const TrainOptions& options, const Inventory& inventory,
                         int64_t num_to_come) {
  const int64_t one = OneExportBytes(options, inventory);
  PlannedExports exports;
  exports.bytes = NumExports(options) * one;
  exports.to_come_bytes = num_to_come * one;
  exports.largest_file_bytes = options.export_format == ExportFormat::kNone ? 0 : one;
  exports.folder = options.out;
  exports.shrink_with = "--set=keep or --export=none";
  return exports;
}

// All of each layer, as far as options leave it open.
absl::StatusOr<BlockRecompute> RecomputeOf(const DecoderConfig& model,
                                           const TrainOptions& options) {
  const Recompute recompute = options.recompute.value_or(Recompute::kAll);
  const int64_t given_layers = options.recompute_layers;
  if (given_layers > 0 && (!options.recompute.has_value() || recompute == Recompute::kNone)) {
    return UsageError(
        fmt::format("--set=recompute_layers={} says how many layers compute something again, and "
                    "--recompute={} does not say what: give --recompute=all or attention, or "
                    "--set=recompute_layers=0",
                    given_layers, OptionText(options, "recompute")));
  }
  BlockRecompute blocks = {recompute, model.num_layers};
  if (given_layers > 0) {
    blocks.num_blocks = static_cast<int>(std::min<int64_t>(given_layers, model.num_layers));
  }
  if (recompute == Recompute::kNone) blocks = {Recompute::kAll, 0};
  if (options.number_checkpoints == 0) return blocks;
  if (blocks != BlockRecompute{Recompute::kAll, model.num_layers} ||
      options.activations_tier == ActivationsTier::kNvme) {
    return UsageError(fmt::format(
        "--set=number_checkpoints={} has every layer compute all again, from inputs in memory: use "
        "--recompute=auto --set=recompute_layers=0 --set=activations_tier=ram, or "
        "--set=number_checkpoints=0",
        options.number_checkpoints));
  }
  const int64_t segments = std::min<int64_t>(options.number_checkpoints, model.num_layers);
  // The last segment keeps all, so that one alone is as good as none.
  if (segments > 1) {
    blocks.segment_blocks = static_cast<int>((model.num_layers + segments - 1) / segments);
  }
  return blocks;
}

std::vector<PlanTerm> DecoderMemoryOnCpu(const DecoderConfig& model, const TrainOptions& options,
                                         const Inventory& inventory, const MachineLimits& limits,
                                         const BlockRecompute& recompute) {
  // Of each part, which have memory of their own but for the workspace.
  const int64_t tokens = options.batch * options.accum * options.seq;
  const int64_t num_parts = options.data_parallel;
  const DType activations = options.activations_dtype;
  const DecoderStepMemory step = StepMemoryFor(model, inventory, tokens, recompute, activations);
  const auto of_parts = [&](int64_t bytes) { return num_parts * HostBuffer::ChargedBytes(bytes); };
  DecoderOptions decoder;
  decoder.num_threads = options.threads > 0 ? options.threads : limits.num_cores;
  decoder.precision = options.precision;
  decoder.max_tokens = options.batch * options.seq;
  std::vector<PlanTerm> terms = {
      {kLayerGradientPurpose, of_parts(step.layer_gradient_bytes), 0, ""},
      {"activation gradients", of_parts(step.activation_gradient_bytes), 0, kTokensShrinkWith},
      {kSavedPurpose, of_parts(step.saved_bytes), 0, "--recompute"},
      {"decoder workspace", DecoderWorkspaceBytes(model, decoder), 0,
       "--batch, --seq or --threads"},
  };
  if (step.projection_input_bytes > 0) {
    terms.push_back({kProjectionPurpose,
                     of_parts(step.projection_input_bytes) + of_parts(step.log_sum_exp_bytes) +
                         of_parts(step.small_gradient_bytes) + of_parts(step.logit_sums_bytes),
                     0, kTokensShrinkWith});
  }
  if (step.embedding_gradient_bytes > 0) {
    terms.push_back({kEmbeddingGradientPurpose, of_parts(step.embedding_gradient_bytes), 0, ""});
  }
  if (activations != DType::kF32) {
    const int64_t bytes = WideActivationBytes(model, decoder.max_tokens, activations);
    terms.push_back({kWidePurpose, of_parts(bytes), 0, "--batch or --seq"});
  }
  if (num_parts > 1) {
    terms.push_back({"sum of the gradients of parts (fp32)",
                     HostPartGradients::ChargedBytes(inventory.largest_layer_elems()), 0, ""});
  }
  return terms;
}

// Of a layer. Each part has a buffer for all of its activations.
int64_t ActivationBytesOnCpu(const DecoderConfig& model, const TrainOptions& options,
                             int64_t part_tokens) {
  const int64_t bytes = ForwardBytes(model, part_tokens, options.activations_dtype);
  return options.data_parallel == 1 ? bytes
                                    : options.data_parallel * HostBuffer::ChargedBytes(bytes);
}

absl::Status CheckActivationsOfGpu(const TrainOptions& options) {
  if (options.activations_dtype == DType::kF32 || options.precision == cpu::Precision::kBf16) {
    return absl::OkStatus();
  }
  return UsageError(fmt::format(
      "--set=activations_dtype=bf16 with --precision={}: activations of a type of their "
      "own are for the "
      "CPU. Leave it out, or use --precision=bf16 or --device=cpu",
      OptionText(options, "precision")));
}

std::vector<PlanTerm> StepMemoryOf(const DecoderConfig& model, const TrainOptions& options,
                                   const Inventory& inventory, const MachineLimits& limits,
                                   const BlockRecompute& recompute, const GpuPlan& gpu) {
  std::vector<PlanTerm> terms =
      gpu.device.empty() ? DecoderMemoryOnCpu(model, options, inventory, limits, recompute)
                         : HostTermsOfGpu(model, options, inventory, gpu);
  terms.push_back(
      {"tokens of a step", StepTokens(options) * kBatchBytesPerToken, 0, kTokensShrinkWith});
  if (options.num_ranks > 1) {
    terms.push_back(
        {"sum of gradients over ranks (fp32)",
         GradientSum::ChargedBytes(inventory, options.num_ranks, options.reduce_bucket_bytes), 0,
         "--set=reduce_bucket=1MiB"});
    terms.push_back({"messages between ranks", kRankScratchBytes, 0, ""});
  }
  if (const RankPart part = PartOf(options); part.of > 1) {
    const GatheredFor length = GatheredForStage(options.zero_stage);
    terms.push_back(
        {"weights of all ranks",
         GatheredWeights::ChargedBytes(inventory, WeightDType(options.layout), {length}), 0,
         length == GatheredFor::kUse ? "" : "--zero_stage=3"});
    terms.push_back({"sums of squares of gradients",
                     HeldGradients::SumsBytes(InventoryOf(model, part)), 0, ""});
  }
  if (options.save_every > 0) {
    terms.push_back({"export beside the steps", kExportBytes, 0, "--save_every=0"});
  }
  if (!options.trace.empty()) {
    terms.push_back({"trace of some steps", kTraceBytes, 0, "no --trace"});
  }
  return terms;
}

RankTraffic TrafficOf(const DecoderConfig& model, const TrainOptions& options,
                      const OffloadPlan& plan) {
  if (options.num_ranks == 1) return {};
  const RankPart part = PartOf(options);
  if (part.of == 1) {
    return TrafficOfSums(BuildInventory(model), options.num_ranks, options.reduce_dtype);
  }
  const bool keeps = GatheredForStage(options.zero_stage) == GatheredFor::kStep;
  const StepSchedule gathers = keeps ? ReadingOnce(plan.schedule) : plan.schedule;
  return TrafficOfParts(*PartsOf(model, part), part.number, WeightDType(options.layout),
                        gathers.Reads(), options.reduce_dtype);
}

// With exactly these options.
absl::StatusOr<Plan> PlanAsTold(const DecoderConfig& model, const TrainOptions& options,
                                const MachineLimits& limits, VocabularyParts vocabulary) {
  FOREBAY_RETURN_IF_ERROR(CheckPositions(model, options));
  PlanInputs inputs;
  inputs.inventory = BuildInventory(model);
  FOREBAY_ASSIGN_OR_RETURN(BlockRecompute recompute, RecomputeOf(model, options));
  recompute.vocabulary_in_parts = vocabulary != VocabularyParts::kNone;
  recompute.vocabulary_in_pieces = vocabulary == VocabularyParts::kWeightsToo;
  inputs.chain = ChainOf(model, recompute);
  FOREBAY_ASSIGN_OR_RETURN(GpuPlan gpu,
                           MakeGpuPlan(model, options, inputs.inventory, recompute, limits.gpu));
  const bool on_gpu = !gpu.device.empty();
  if (recompute.vocabulary_in_pieces) inputs.piece_elems = PieceElemsOf(model);
  inputs.copies_pieces = on_gpu;
  if (on_gpu) FOREBAY_RETURN_IF_ERROR(CheckActivationsOfGpu(options));
  inputs.step_memory = StepMemoryOf(model, options, inputs.inventory, limits, recompute, gpu);
  inputs.chain.num_spilled_activations = gpu.num_spilled_activations;
  const int64_t part_tokens = StepTokens(options) / options.data_parallel;
  if (!on_gpu) {
    inputs.activation_bytes = ActivationBytesOnCpu(model, options, part_tokens);
  } else if (options.activations_tier == ActivationsTier::kNvme) {
    inputs.activation_bytes = CudaActivationBytes(model, CudaDecoderOptionsOf(options, gpu));
    inputs.num_activation_buffers = kActivationStorageBuffers;
  }
  inputs.activations_shrink_with = kTokensShrinkWith;
  if (options.activations_tier != ActivationsTier::kNvme && recompute.segment_blocks == 1 &&
      MostSpilledActivations(inputs.chain) > 0) {
    inputs.activations_shrink_with =
        on_gpu || options.activations_dtype != DType::kF32
            ? "--batch, --seq, --accum, --set=activations_tier=nvme or --set=number_checkpoints"
            : "--batch, --seq, --accum, --set=activations_tier=nvme, --set=activations_dtype=bf16 "
              "or "
              "--set=number_checkpoints";
  }
  const int64_t exports_to_come = ExportsToCome(options, inputs.inventory, limits);
  inputs.exports = ExportsOf(options, inputs.inventory, exports_to_come);
  const RankPart part = PartOf(options);
  inputs.inventory = InventoryOf(model, part);
  inputs.reads_layers_once =
      part.of > 1 && GatheredForStage(options.zero_stage) == GatheredFor::kStep;
  // One of several ranks exports, and the others do not know.
  inputs.keeps_nothing = options.export_format == ExportFormat::kNone && options.num_ranks == 1;
  inputs.store_exists = options.resume;
  inputs.device_state_bytes = RoomForState(options, gpu);
  absl::StatusOr<OffloadPlan> offload = MakeOffloadPlan(inputs, options, limits);
  const bool may_do_without =
      options.state_tier == TierChoice::kAuto && inputs.device_state_bytes > 0;
  if (may_do_without && !(offload.ok() && IsWorthItsBuffers(*offload))) {
    inputs.device_state_bytes = 0;
    offload = MakeOffloadPlan(inputs, options, limits);
  }
  FOREBAY_RETURN_IF_ERROR(offload.status());
  Plan plan{*std::move(offload)};
  AddState(options, plan, gpu);
  plan.tokens_per_step = StepTokens(options);
  plan.exports_to_come = exports_to_come;
  plan.traffic = TrafficOf(model, options, plan);
  plan.num_steps = options.steps;
  plan.steps_within_limit = StepsWithinLimit(plan, options);
  plan.recompute = recompute;
  plan.gpu = std::move(gpu);
  plan.forecast = ForecastStep(
      plan, {on_gpu, plan.gpu.num_spilled_activations},
      // GPUs compute their parts at a time.
      FlopsOf(model, on_gpu ? part_tokens : plan.tokens_per_step, options.seq, recompute, !on_gpu),
      model, options, limits.speeds);
  plan.speeds_origin = limits.speeds.origin;
  plan.speeds_age_s = limits.speeds.age_s;
  if (!on_gpu && options.device == ComputeDevice::kAuto) plan.why_no_gpu = limits.gpu.why_none;
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const DecoderConfig& model, const TrainOptions& options,
                              const MachineLimits& limits) {
  // Sums over ranks, and over parts of the rows, are of whole layers.
  const bool may_cut =
      MayCutVocabulary(model) && options.num_ranks == 1 && options.data_parallel == 1;
  VocabularyParts most = VocabularyParts::kNone;
  if (may_cut) {
    most = MayLendInPieces(model, BuildInventory(model), options.tile_elems)
               ? VocabularyParts::kWeightsToo
               : VocabularyParts::kGradients;
  }
  return WithActivationsThatFit(options, [&](const TrainOptions& tiered) {
    return WithVocabularyThatFits(most, [&](VocabularyParts vocabulary) -> absl::StatusOr<Plan> {
      const auto as_told = [&](const TrainOptions& told) {
        return PlanAsTold(model, told, limits, vocabulary);
      };
      FOREBAY_ASSIGN_OR_RETURN(Plan plan, as_told(tiered));
      return WithFastestSettings(std::move(plan), tiered, model.num_layers, as_told);
    });
  });
}

void FindBetterSettings(const DecoderConfig& model, const TrainOptions& options,
                        const MachineLimits& limits, Plan& plan) {
  MachineLimits more_memory = limits;
  more_memory.available_memory_bytes = 0;
  plan.better = BetterSettings(
      plan, options, limits.available_memory_bytes,
      [&](const TrainOptions& other) { return MakePlan(model, other, more_memory); });
}

}  // namespace forebay
