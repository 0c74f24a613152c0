// Every setting of a training run, with the one table that defines its flag, its configuration key,
// default, range and help text (option_table.cc). tools/ makes flags of the table; --config and
// --set go through it too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/model/recompute.h"
#include "forebay/offload/offload_options.h"
#include "forebay/train/options/loss_scaling.h"
#include "forebay/train/options/lr_schedule.h"

namespace forebay {

enum class ExportFormat : uint8_t { kHuggingFace, kNone };
// The presets of NVIDIA's Apex (apex.amp, opt_level), for what was not said otherwise.
enum class OptLevel : uint8_t { kNone, kO0, kO1, kO2, kO3 };

// The device that computes the layers. kAuto: a GPU where there is one.
enum class ComputeDevice : uint8_t { kAuto, kCpu, kCuda };
constexpr std::string_view NameOf(ComputeDevice device) {
  return device == ComputeDevice::kAuto ? "auto" : device == ComputeDevice::kCpu ? "cpu" : "cuda";
}

// From the first to the last of them; 0 and 0: not said.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
};

// Data, folders and schedule: what is the trainer's own.
struct RunOptions {
  // model, data
  std::string model;       // Hugging Face folder
  std::string data;        // .txt, .jsonl or packed file
  std::string eval_data;   // the same; empty: no evaluation
  int64_t eval_every = 0;  // steps; 0: at the end only (when eval_data is given)
  bool truncate = false;   // cut over-long prompts and chats instead of refusing them
  int64_t batch = 4;       // packed rows per micro-batch, over all ranks
  int64_t accum = 1;       // micro-batches per step
  int64_t seq = 1024;      // tokens per row
  uint64_t seed = 0;

  // schedule
  int64_t steps = 0;  // 0: from epochs
  double epochs = 1;
  int64_t stop_after = 0;  // ends after that many steps of this process, schedule unchanged; 0: off
  double max_tbw = 0;      // TB that all sessions may write to the store's disks; 0: any
  int64_t warmup = 0;      // steps
  LrSchedule schedule = LrSchedule::kLinear;
  Json schedule_args = Json::object();  // as ParseLrScheduleArgs takes them

  // precision
  cpu::Precision precision = cpu::Precision::kBf16;  // OffloadOptions' layout and dtype follow it
  bool tf32 = false;                                 // products of fp32 on a GPU round their inputs
  OptLevel opt_level = OptLevel::kNone;
  LossScaling loss_scaling = LossScaling::kZero;  // as LossScalerOptions has it, of fp16
  double loss_scale = 0;                          // 0: dynamic
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  int threads = 0;  // compute; 0: all cores
  ComputeDevice device = ComputeDevice::kCpu;
  int64_t gpu_mem_bytes = 0;  // budget on the GPU; 0: kAutoGpuShare of what is free
  // Blocks compute this again in backward; nullopt: as choose_settings.h has it.
  std::optional<Recompute> recompute;
  int64_t recompute_layers = 0;  // the first so many blocks do; 0: all
  // Segments of blocks of which the input alone is kept; 0: as choose_settings.h has it.
  int64_t number_checkpoints = 0;
  DType activations_dtype = DType::kF32;  // between layers, on a CPU: kF32 or kBF16

  // folders
  std::string out;         // run folder
  int64_t save_every = 0;  // steps; exports to OUT/exports/step-N
  int64_t keep = 2;        // exports kept
  ExportFormat export_format = ExportFormat::kHuggingFace;
  DType export_dtype = DType::kBF16;  // of its weights; follows precision unless set
  std::string from;  // run folder: the state to begin with; empty: that of the model
  bool resume = false;
  bool dry_run = false;

  // Parts of each micro-batch's rows that this process computes apart, on a GPU each.
  int data_parallel = 1;

  // several processes
  int zero_stage = 0;        // what is divided among ranks, as in ZeRO; 0: data alone
  double rank_timeout = 60;  // seconds that a rank may keep the others waiting
  int rank = 0;              // as the run was launched: no options
  int num_ranks = 1;
  int gpu_index = 0;      // of those that this process sees
  std::string trace;      // a trace of some steps of this process; empty: none
  StepRange trace_steps;  // not said: the three after its first
};

struct TrainOptions : OffloadOptions, RunOptions {};

LossScalerOptions ScalerOf(const TrainOptions& options);

// Where a value came from: "default", "config FILE", "flag", "--set", "planner".
struct ResolvedOptions {
  TrainOptions options;
  Json resolved;                   // {"section": {"key": {"value": ..., "origin": ...}}}
  std::vector<std::string> notes;  // for the user: what was wrong with the records of a run
};

}  // namespace forebay
