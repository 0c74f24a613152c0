// Every setting of a training run, with the one table that defines its flag, its configuration key,
// default, range and help text (option_table.cc). tools/ makes flags of the table; --config and
// --set go through it too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/json.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/swap/tiles/layout.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/train/options/loss_scaling.h"
#include "forebay/train/options/lr_schedule.h"

namespace forebay {

enum class ExportFormat : uint8_t { kHuggingFace, kNone };
// What a crash may take: kStep keeps the last committed step, kNone the exports alone. kAuto: kStep
// where the disk has room for it.
enum class Durability : uint8_t { kAuto, kNone, kStep, kReplay };

// What becomes of finished gradients until their norm is known. kAuto: they are held, but that of
// those which do not fit in RAM are applied at once where nothing clips (plan.h).
enum class GradientChoice : uint8_t { kAuto, kHold, kSpeculate };

// The presets of NVIDIA's Apex (apex.amp, opt_level), for what was not said otherwise.
enum class OptLevel : uint8_t { kNone, kO0, kO1, kO2, kO3 };

// Tensors with settings of their own.
struct ParamGroupOption {
  std::string match;                   // as fnmatch(3), of Hugging Face names
  std::optional<double> lr;            // in place of TrainOptions::lr
  std::optional<double> weight_decay;  // the same
};

struct TrainOptions {
  // model, data
  std::string model;       // Hugging Face folder
  std::string data;        // .txt, .jsonl or packed file
  std::string eval_data;   // the same; empty: no evaluation
  int64_t eval_every = 0;  // steps; 0: at the end only (when eval_data is given)
  bool truncate = false;   // cut over-long prompts and chats instead of refusing them
  int64_t batch = 4;       // packed rows per micro-batch
  int64_t accum = 1;       // micro-batches per step
  int64_t seq = 1024;      // tokens per row
  uint64_t seed = 0;

  // optim
  int64_t steps = 0;  // 0: from epochs
  double epochs = 1;
  int64_t stop_after = 0;  // ends after that many steps of this process, schedule unchanged; 0: off
  double lr = 2e-5;
  int64_t warmup = 0;  // steps
  LrSchedule schedule = LrSchedule::kLinear;
  Json schedule_args = Json::object();  // as ParseLrScheduleArgs takes them
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double weight_decay = 0.01;
  bool decay_all = false;  // also norms and biases
  std::vector<ParamGroupOption> param_groups;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;    // SGD
  bool nesterov = false;  // SGD with momentum
  double clip = 1.0;      // global L2 norm; 0: off
  // The first step that does not see the update of the step before (delayed_updates.h); 0: none.
  int64_t delay_update_from = 0;
  OptLevel opt_level = OptLevel::kNone;
  LossScaling loss_scaling = LossScaling::kZero;  // as LossScalerOptions has it, of fp16
  double loss_scale = 0;                          // 0: dynamic
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;

  // offload
  std::vector<std::string> nvme;     // folders of the swap area; empty: OUT/swap
  std::vector<double> nvme_weights;  // of them, in proportion; empty: as fast as they are
  int64_t ram_bytes = 0;  // budget of the process; 0: what is available less a margin (planner)
  cpu::Precision precision = cpu::Precision::kBf16;
  Layout layout = Layout::kBf16;    // follows precision unless set
  DType grad_dtype = DType::kBF16;  // hand-over; follows precision unless set
  int threads = 0;                  // compute; 0: all cores
  int update_threads = 0;           // of the optimizer's update; 0: as many as `threads`
  EngineKind engine = EngineKind::kAuto;
  bool engine_strict = false;  // refuses a lesser engine than the one asked for
  int io_threads = 2;          // of the threads engine
  std::string bench;           // io.json of `swap-bench tune`; empty: none
  double rated_tbw = 600;      // endurance of the drive in TB written
  int64_t tile_elems = kDefaultTileElems;
  TierChoice weights_tier = TierChoice::kAuto;
  TierChoice state_tier = TierChoice::kAuto;
  GradientChoice gradients = GradientChoice::kAuto;
  Durability durability = Durability::kAuto;
  int64_t commit_every = 0;  // steps; 0: as commit_policy.h has it
  int64_t scrub_every = 0;   // steps from one scrub's beginning to the next one's; 0: none

  // io
  std::string out;         // run folder
  int64_t save_every = 0;  // steps; exports to OUT/exports/step-N
  int64_t keep = 2;        // exports kept
  ExportFormat export_format = ExportFormat::kHuggingFace;
  DType export_dtype = DType::kBF16;  // of its weights; follows precision unless set
  bool resume = false;
  bool dry_run = false;
};

OptimizerConfig RuleOf(const TrainOptions& options);
LossScalerOptions ScalerOf(const TrainOptions& options);

// Where a value came from: "default", "config FILE", "flag", "--set", "planner".
struct ResolvedOptions {
  TrainOptions options;
  Json resolved;                   // {"section": {"key": {"value": ..., "origin": ...}}}
  std::vector<std::string> notes;  // for the user: what was wrong with the records of a run
};

}  // namespace forebay
