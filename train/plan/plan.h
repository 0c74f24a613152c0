// The plan of a training run. `plan` prints this object; `train` executes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/recompute.h"
#include "forebay/offload/plan.h"
#include "forebay/offload/ranks/gathered_weights.h"
#include "forebay/offload/ranks/rank_traffic.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/ask_machine.h"
#include "forebay/train/plan/forecast.h"

namespace forebay {

// The room for messages between a rank and the others (CommunicatorOptions::scratch_bytes).
inline constexpr int64_t kRankScratchBytes = int64_t{8} << 20;

// A purpose of memory on the GPU.
struct GpuTerm {
  std::string name;
  int64_t bytes = 0;
  std::string shrink_with;  // as PlanTerm has it
};

// ZeRO's stages 1 and 2 divide what the update needs, stage 3 the weights too.
constexpr GatheredFor GatheredForStage(int zero_stage) {
  return zero_stage == 3 ? GatheredFor::kUse : GatheredFor::kStep;
}

struct GpuPlan {
  std::string device;  // empty: on the CPU
  int64_t budget_bytes = 0;
  std::vector<GpuTerm> terms;
  int64_t bytes = 0;  // their sum
  // As Chain has both. What is spilled waits for its backward pass in RAM, or on disk
  // (--set=activations_tier).
  int segment_layers = 1;
  int num_spilled_activations = 0;
  bool spills_to_storage = false;
  // As CudaDecoderOptions has both: where it does not fit otherwise.
  bool shares_gradients = false;
  bool vocabulary_in_parts = false;
};

// The share of a GPU's free memory that is taken when --gpu_mem is not given: its driver and
// libraries need some beside what they are asked for.
inline constexpr double kAutoGpuShare = 0.9;

// A setting that would make a step shorter, and the forecast with it.
struct BetterSetting {
  std::string text;  // the flag, and what else it changes
  double step_s = 0;
  double tokens_per_s = 0;
};

struct Plan : OffloadPlan {
  int64_t tokens_per_step = 0;  // packed rows * seq, padding included
  // Models that OUT is to have room for, beside those that it has.
  int64_t exports_to_come = 0;
  RankTraffic traffic;    // of each step, with the other ranks
  int64_t num_steps = 0;  // 0: not known
  // The run stops for --max_tbw after so many steps (of a run that is resumed: more) at the
  // earliest; nullopt: it does not.
  std::optional<int64_t> steps_within_limit;
  // By the sessions before this one; nullopt: the run is new.
  std::optional<int64_t> written_before_bytes;
  BlockRecompute recompute;  // of the blocks that there are
  GpuPlan gpu;
  std::string why_no_gpu;                // where --device=auto found none
  std::optional<StepForecast> forecast;  // where the machine's speeds are known
  std::string speeds_origin;             // MachineSpeeds::origin
  double speeds_age_s = 0;               // MachineSpeeds::age_s
  std::vector<BetterSetting> better;     // of FindBetterSettings

  bool on_gpu() const { return !gpu.device.empty(); }
};

// As MakeOffloadPlan, of the decoder's layers and step. UsageError also when --seq exceeds the
// model's positions. With --device=cuda: EnvironmentError where there is no GPU and no --gpu_mem to
// plan for one; DoesNotFitError that names the largest terms on it. Where options leave it open of
// how many layers gradients are applied at once, and the machine's speeds are known, these are as
// many as make the fastest step, and so is what blocks compute again (choose_settings.h). With
// --set=activations_tier=auto activations wait on disk if memory has no room for them. Pure.
absl::StatusOr<Plan> MakePlan(const DecoderConfig& model, const TrainOptions& options,
                              const MachineLimits& limits);
// Fills `plan.better`, for plans with more memory too than there is. Plans many times.
void FindBetterSettings(const DecoderConfig& model, const TrainOptions& options,
                        const MachineLimits& limits, Plan& plan);

// {"fits", "ram_budget_bytes", "host_bytes", "nvme_bytes", ..., "terms": [...], "stripes": [...]}
// (docs/cli.md).
Json ToJson(const Plan& plan);
// The table that `plan` and the start of `train` print.
std::string FormatPlan(const Plan& plan, const DecoderConfig& model, const TrainOptions& options);

}  // namespace forebay
