#include "forebay/train/options/option_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <string>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/train/options/lr_schedule_table.h"
#include "forebay/train/options/option_kinds.h"

namespace forebay {

LossScalerOptions ScalerOf(const TrainOptions& options) {
  return {.rules = options.loss_scaling,
          .static_scale = options.loss_scale,
          .initial_scale_power = options.initial_scale_power,
          .window = options.loss_scale_window,
          .hysteresis = options.hysteresis,
          .consecutive_hysteresis = options.consecutive_hysteresis,
          .min_scale = options.min_loss_scale};
}

namespace {

// The words that the rows are written in.
using option_kinds::Betas;
using option_kinds::Choice;
using option_kinds::Choices;
using option_kinds::ChoicesOf;
using option_kinds::Data;
using option_kinds::Folders;
using option_kinds::kManySteps;
using option_kinds::Memory;
using option_kinds::ParamGroups;
using option_kinds::Path;
using option_kinds::Real;
using option_kinds::ScheduleArgs;
using option_kinds::Steps;
using option_kinds::Switch;
using option_kinds::TileElems;
using option_kinds::Weights;
using option_kinds::Whole;

Choices<OptimizerKind> OptimizerChoices() {
  return ChoicesOf({OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kAdagrad,
                    OptimizerKind::kLion, OptimizerKind::kSgd});
}

Choices<LrSchedule> ScheduleChoices() {
  Choices<LrSchedule> choices;
  for (const LrScheduleSpec& spec : LrScheduleTable()) {
    choices.emplace_back(spec.name, spec.schedule);
  }
  return choices;
}

std::vector<OptionSpec> ModelAndDataRows() {
  using O = TrainOptions;
  return {
      Path("model", "model", &O::model, "Hugging Face folder: config.json, safetensors, tokenizer"),
      Data("data", "data", &O::data,
           "what to train on: texts, rows or chats, in files and folders, each with how often an "
           "epoch passes over it; or one packed file"),
      Data("data", "eval_data", &O::eval_data,
           "held-out text to measure the loss on, same formats"),
      Whole<int64_t>("data", "eval_every", &O::eval_every, 0, kManySteps,
                     "steps between evaluations; 0: at the end only"),
      Switch("data", "truncate", &O::truncate,
             "cut over-long prompts and chats instead of refusing them"),
      Whole<int64_t>("data", "batch", &O::batch, 1, 65536,
                     "packed rows per micro-batch; of several ranks, each takes its part"),
      Whole<int64_t>("data", "accum", &O::accum, 1, 65536, "micro-batches per step"),
      Whole<int64_t>("data", "seq", &O::seq, 2, int64_t{1} << 24, "tokens per packed row"),
      Whole<uint64_t>("data", "seed", &O::seed, 0, std::numeric_limits<uint64_t>::max(),
                      "of the order of the data, and of how moments are rounded"),
  };
}

std::vector<OptionSpec> OptimRows() {
  using O = TrainOptions;
  return {
      Whole<int64_t>("optim", "steps", &O::steps, 0, kManySteps,
                     "length of the run; 0: from --epochs"),
      Real("optim", "epochs", &O::epochs, {.least = 0, .most = 1e6, .above_least = true},
           "passes over the data, when --steps is not given"),
      Whole<int64_t>("optim", "stop_after", &O::stop_after, 0, kManySteps,
                     "stop resumably after this many steps, schedule unchanged; 0: off"),
      Real("optim", "lr", &O::lr, {.least = 0, .most = 10, .above_least = true},
           "peak learning rate"),
      Whole<int64_t>("optim", "warmup", &O::warmup, 0, kManySteps, "steps of linear warm-up"),
      Choice<LrSchedule>("optim", "schedule", &O::schedule, ScheduleChoices(),
                         "of the learning rate, after the warm-up"),
      ScheduleArgs("optim", "arguments of --schedule"),
      Choice<OptimizerKind>("optim", "optimizer", &O::optimizer, OptimizerChoices(),
                            "rule of the update"),
      Real("optim", "weight_decay", &O::weight_decay, {.least = 0, .most = 10},
           "of adamw and lion decoupled; the others add it to the gradient (L2)"),
      Switch("optim", "decay_all", &O::decay_all, "decay norms and biases too"),
      ParamGroups("optim", "tensors with a learning rate or decay of their own"),
      Betas("optim", "beta1 and beta2 of adamw, adam and lion"),
      Real("optim", "eps", &O::eps, {.least = 0, .most = 1, .above_least = true},
           "epsilon of adamw, adam and adagrad"),
      Real("optim", "momentum", &O::momentum, {.least = 0, .most = 1}, "of sgd"),
      Switch("optim", "nesterov", &O::nesterov, "Nesterov's momentum, of sgd"),
      Real("optim", "clip", &O::clip, {.least = 0, .most = 1e9},
           "most global gradient norm; 0: no clipping"),
      Whole<int64_t>(
          "optim", "delay_update_from", &O::delay_update_from, 0, kManySteps,
          "from this step on, 2 or later, a step does not see the update of the one "
          "before, which is applied in its backward pass, except after a commit: another "
          "result; 0: never"),
  };
}

std::vector<OptionSpec> MixedPrecisionRows() {
  using O = TrainOptions;
  constexpr double kMostScale = 1e38;  // of fp32
  return {
      Choice<OptLevel>("optim", "opt_level", &O::opt_level,
                       {{"none", OptLevel::kNone},
                        {"O0", OptLevel::kO0},
                        {"O1", OptLevel::kO1},
                        {"O2", OptLevel::kO2},
                        {"O3", OptLevel::kO3}},
                       "preset of precision and loss scaling, named as in NVIDIA's Apex"),
      Choice<LossScaling>(
          "optim", "loss_scaling", &O::loss_scaling,
          ChoicesOf({LossScaling::kZero, LossScaling::kStage0, LossScaling::kTorch}),
          "rules that move the loss scale of fp16: of DeepSpeed's ZeRO, of "
          "DeepSpeed without it, or of PyTorch's GradScaler"),
      Real("optim", "loss_scale", &O::loss_scale, {.least = 0, .most = kMostScale},
           "fixed loss scale; 0: dynamic"),
      Whole<int>("optim", "initial_scale_power", &O::initial_scale_power, 0, 126,
                 "the loss scale starts at 2 to the power of this"),
      Whole<int64_t>("optim", "loss_scale_window", &O::loss_scale_window, 1, kManySteps,
                     "steps without overflow until the loss scale doubles"),
      Whole<int64_t>("optim", "hysteresis", &O::hysteresis, 1, kManySteps,
                     "overflows until the loss scale falls (zero)"),
      Switch("optim", "consecutive_hysteresis", &O::consecutive_hysteresis,
             "count them anew after each good step (zero)"),
      Real("optim", "min_loss_scale", &O::min_loss_scale,
           {.least = 0, .most = kMostScale, .above_least = true},
           "least loss scale; with zero an overflow there is an error (not of torch)"),
  };
}

std::vector<OptionSpec> OffloadRows() {
  using O = TrainOptions;
  return {
      Folders("offload", "nvme", &O::nvme,
              "folder of the swap area, on a fast local disk; of several, each gets a share"),
      Weights("offload", "nvme_weights", &O::nvme_weights,
              "share of each folder of --nvme, in proportion to the others'"),
      Memory("offload", "ram", &O::ram_bytes, "memory budget of the process"),
      Choice<ComputeDevice>(
          "offload", "device", &O::device,
          ChoicesOf({ComputeDevice::kAuto, ComputeDevice::kCpu, ComputeDevice::kCuda}),
          "what computes the layers; auto: a GPU where there is one"),
      Memory("offload", "gpu_mem", &O::gpu_mem_bytes, "memory budget on the GPU"),
      Choice<cpu::Precision>("offload", "precision", &O::precision,
                             {{"bf16", cpu::Precision::kBf16},
                              {"fp16", cpu::Precision::kFp16},
                              {"fp32", cpu::Precision::kFp32}},
                             "of matrix products"),
      Switch("offload", "tf32", &O::tf32,
             "with --precision=fp32 on a GPU, products round what they multiply to 10 bits of "
             "mantissa, and are several times faster"),
      Choice<Layout>(
          "offload", "layout", &O::layout,
          ChoicesOf({Layout::kBf16, Layout::kFp16, Layout::kFp32, Layout::kBf16Moments,
                     Layout::kInt8Moments}),
          "how weights and moments are kept: bf16 weights with an exact fp32 master and "
          "moments in fp32, bf16 or int8 (rounded), fp16 weights with an fp32 master, or all in "
          "fp32"),
      Choice<DType>("offload", "grad_dtype", &O::grad_dtype,
                    {{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}},
                    "of finished gradients (they are summed in fp32)"),
      Whole<int>("offload", "threads", &O::threads, 0, 1024,
                 "compute threads; 0: one per core that it may use"),
      Whole<int>("offload", "update_threads", &O::update_threads, 0, 1024,
                 "threads of the optimizer's update, which runs during the computation; 0: as many "
                 "as --threads"),
      Choice<EngineKind>("offload", "engine", &O::engine,
                         {{"auto", EngineKind::kAuto},
                          {"io_uring", EngineKind::kIoUring},
                          {"libaio", EngineKind::kLibaio},
                          {"threads", EngineKind::kThreads},
                          {"buffered", EngineKind::kBuffered}},
                         "how the swap area is read and written; what cannot be used here steps "
                         "down, and the log says why"),
      Switch("offload", "engine_strict", &O::engine_strict,
             "stop instead of stepping down to a slower engine"),
      Whole<int>("offload", "io_threads", &O::io_threads, 1, 256,
                 "I/O threads of the engines threads and buffered, for each disk"),
      Path("offload", "bench", &O::bench,
           "io.json of 'swap-bench tune': engine settings and disk speeds, where they hold"),
      Real("offload", "tbw", &O::rated_tbw, {.least = 0, .most = 1e9, .above_least = true},
           "TB that the drive is rated to write in its life, for the plan"),
      Real("offload", "max_tbw", &O::max_tbw, {.least = 0, .most = 1e9},
           "TB that the run may write to the disks of its swap area in all its sessions; it stops "
           "resumably before; 0: any"),
      TileElems("offload", "elements of one tile, the unit of disk transfers"),
  };
}

// Where things live, and what is left of them.
std::vector<OptionSpec> PlacementRows() {
  using O = TrainOptions;
  const Choices<TierChoice> tiers = {
      {"auto", TierChoice::kAuto}, {"host", TierChoice::kHost}, {"nvme", TierChoice::kNvme}};
  Choices<TierChoice> state_tiers = tiers;
  state_tiers.push_back({"gpu", TierChoice::kDevice});
  return {
      Choice<TierChoice>("offload", "weights_tier", &O::weights_tier, tiers,
                         "where weights live between uses"),
      Choice<TierChoice>("offload", "state_tier", &O::state_tier, state_tiers,
                         "where the optimizer's state lives; gpu: in --gpu_mem, and is updated "
                         "there; auto: RAM, then the GPU, then NVMe"),
      Choice<ActivationsTier>(
          "offload", "activations_tier", &O::activations_tier,
          ChoicesOf({ActivationsTier::kAuto, ActivationsTier::kRam, ActivationsTier::kNvme}),
          "where activations wait for the backward pass: ram, nvme (three of them in RAM at a "
          "time); auto: nvme if ram has no room for them"),
      Choice<DType>("offload", "activations_dtype", &O::activations_dtype,
                    {{"fp32", DType::kF32}, {"bf16", DType::kBF16}},
                    "of activations between layers on a CPU; bf16 halves what waits for the "
                    "backward pass, and changes the result. A GPU has them in --precision"),
      Choice<std::optional<Recompute>>(
          "offload", "recompute", &O::recompute,
          {{"auto", std::nullopt},
           {"all", Recompute::kAll},
           {"attention", Recompute::kAttention},
           {"none", Recompute::kNone}},
          "what the backward pass computes again inside of layers, where the rest waits in RAM: "
          "all, attention with the projections before it, or none; auto: what makes the fastest "
          "step where the machine's speeds are known, else all that memory has no room for"),
      Whole<int64_t>("offload", "recompute_layers", &O::recompute_layers, 0, 65536,
                     "the first so many layers, without embedding and head, compute again what "
                     "--recompute says, and the others none. 0: all"),
      Whole<int64_t>("offload", "number_checkpoints", &O::number_checkpoints, 0, 65536,
                     "segments of layers of which only the input is kept; the backward pass reads "
                     "and computes their layers once more. Of the last one all is kept. "
                     "0: one for each layer, or fewer where --recompute=auto finds that faster"),
      Choice<GradientChoice>(
          "offload", "gradients", &O::gradients,
          {{"auto", GradientChoice::kAuto},
           {"hold", GradientChoice::kHold},
           {"speculate", GradientChoice::kSpeculate}},
          "until the norm of all is known: hold (in RAM, else on NVMe), speculate (applied at once "
          "to the slot that is not committed; a step that is clipped is computed again); auto: "
          "speculate where nothing clips and they do not fit in RAM"),
      Whole<int64_t>("offload", "speculate_layers", &O::speculate_layers, 0, 65536,
                     "layers, spread evenly, whose gradients are applied at once; those of the "
                     "others are held. 0: as many as make the fastest step if the machine's "
                     "speeds are known, else with --gradients=speculate all"),
      Choice<Durability>(
          "offload", "durability", &O::durability,
          {{"auto", Durability::kAuto}, {"none", Durability::kNone}, {"step", Durability::kStep}},
          "what a crash leaves: step (the last committed step; twice the space), none (only "
          "exports); auto: step if there is room"),
      Whole<int64_t>("offload", "commit_every", &O::commit_every, 0, kManySteps,
                     "steps between commits; 0: each where all state is on disk, else so that they "
                     "take 5 % of the time, more often where a crash would lose more than ten "
                     "minutes"),
  };
}

// The options of a run on several GPUs, or in several processes.
std::vector<OptionSpec> RankRows() {
  using O = TrainOptions;
  return {
      Whole<int>("offload", "data_parallel", &O::data_parallel, 1, 64,
                 "GPUs of this one process, each of which computes a part of every micro-batch's "
                 "rows; all have one state. On a CPU the parts are computed one after the other"),
      Whole<int>("offload", "zero_stage", &O::zero_stage, 0, 3,
                 "what ranks divide among them, as ZeRO counts; 0: the data alone, each rank has "
                 "the whole state"),
      Choice<DType>(
          "offload", "reduce_dtype", &O::reduce_dtype,
          {{"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}},
          "of gradients on their way between ranks. bf16 and fp16 halve the bytes and change the "
          "result: each rank's gradients are rounded, added in fp32, and the sums rounded"),
      Memory("offload", "reduce_bucket", &O::reduce_bucket_bytes,
             "gradients (fp32) that are being summed over ranks at one time: a constant, also if "
             "layers are larger; auto: 1 GiB, or as much as the largest layer"),
      Real("offload", "rank_timeout", &O::rank_timeout,
           {.least = 0, .most = 1e6, .above_least = true},
           "seconds that one rank may keep the others waiting"),
  };
}

std::vector<OptionSpec> IoRows() {
  using O = TrainOptions;
  return {
      Path("io", "out", &O::out, "run folder: logs, and the trained model in OUT/model"),
      Path("io", "from", &O::from,
           "begin with the state and the settings of the run in that folder, of any number of "
           "ranks: a copy of it"),
      Whole<int64_t>("io", "save_every", &O::save_every, 0, kManySteps,
                     "steps between exports to OUT/exports; 0: off"),
      Whole<int64_t>("io", "keep", &O::keep, 1, 1000000, "exports kept in OUT/exports"),
      Choice<ExportFormat>("io", "export", &O::export_format,
                           {{"hf", ExportFormat::kHuggingFace}, {"none", ExportFormat::kNone}},
                           "format of the trained model"),
      Choice<DType>("io", "export_dtype", &O::export_dtype,
                    {{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}},
                    "of the trained model's weights"),
      Switch("io", "resume", &O::resume, "continue the run in OUT; its settings are the defaults"),
      Switch("io", "dry_run", &O::dry_run, "check everything and print the plan, then stop"),
      Path("io", "trace", &O::trace,
           "JSON file for a trace of some steps of this process, to look at in Perfetto"),
      Steps("io", "trace_steps", &O::trace_steps, "the steps of --trace"),
  };
}

// Defaults that are worked out from other options or from the machine.
std::string DefaultText(const OptionSpec& spec) {
  if (spec.name == "nvme") return "OUT/swap";
  if (spec.name == "nvme_weights") return "measured";
  if (spec.name == "layout" || spec.name == "grad_dtype" || spec.name == "export_dtype")
    return "as --precision";
  if (spec.name == "loss_scale_window") return "1000, of torch 2000";
  if (spec.name == "seq") return "1024, or that of packed data";
  if (spec.name == "trace" || spec.name == "from") return "none";
  if (spec.name == "trace_steps") return "the three after the first";
  if (spec.name == "model" || spec.name == "data" || spec.name == "out") return "required";
  return ValueText(spec.get(TrainOptions{}));
}

OptionForm FormOf(std::string_view name) {
  constexpr std::string_view kOfOptimizer[] = {"decay_all", "betas", "eps", "momentum", "nesterov"};
  constexpr std::string_view kOfLossScaling[] = {"loss_scale",        "initial_scale_power",
                                                 "loss_scale_window", "hysteresis",
                                                 "min_loss_scale",    "consecutive_hysteresis"};
  constexpr std::string_view kOnlySet[] = {
      "activations_dtype",  "activations_tier", "grad_dtype",   "io_threads",       "keep",
      "number_checkpoints", "nvme_weights",     "rank_timeout", "recompute_layers", "reduce_bucket",
      "speculate_layers",   "tile_elems",       "trace_steps",  "update_threads"};
  const auto is_one_of = [&](std::span<const std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (is_one_of(kOfOptimizer)) return OptionForm::kOptimizerArgs;
  if (is_one_of(kOfLossScaling)) return OptionForm::kLossScalingArgs;
  return is_one_of(kOnlySet) ? OptionForm::kSet : OptionForm::kFlag;
}

std::vector<OptionSpec> MakeTable() {
  std::vector<OptionSpec> table;
  for (std::vector<OptionSpec> rows : {ModelAndDataRows(), OptimRows(), MixedPrecisionRows(),
                                       OffloadRows(), PlacementRows(), RankRows(), IoRows()}) {
    std::ranges::move(rows, std::back_inserter(table));
  }
  for (OptionSpec& spec : table) {
    spec.default_text = DefaultText(spec);
    spec.form = FormOf(spec.name);
  }
  return table;
}

}  // namespace

std::string_view ArgsFlag(OptionForm form) {
  switch (form) {
    case OptionForm::kOptimizerArgs:
      return "optimizer_args";
    case OptionForm::kLossScalingArgs:
      return "loss_scaling_args";
    default:
      return "";
  }
}

std::string GivenAs(const OptionSpec& spec) {
  if (spec.form == OptionForm::kFlag) return "--" + spec.name;
  const std::string_view args = ArgsFlag(spec.form);
  return fmt::format("--{}={}", args.empty() ? "set" : args, spec.name);
}

const std::vector<OptionSpec>& OptionTable() {
  static const std::vector<OptionSpec> table = MakeTable();
  return table;
}

const std::vector<std::string>& OptionSections() {
  static const std::vector<std::string> sections = {"model", "data", "optim", "offload", "io"};
  return sections;
}

std::string WithUnderscores(std::string_view name) {
  std::string result(name);
  std::ranges::replace(result, '-', '_');
  return result;
}

const OptionSpec* FindOption(std::string_view name) {
  const std::string key = WithUnderscores(name);
  const auto found = std::ranges::find(OptionTable(), key, &OptionSpec::name);
  return found == OptionTable().end() ? nullptr : &*found;
}

std::string ValueText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() && !value.empty() && value.front().is_object()) return value.dump();
  if (value.is_array() || value.is_object()) {
    std::string text;
    for (const auto& [name, item] : value.items()) {
      text += (text.empty() ? "" : ",") + (value.is_object() ? name + "=" : "") + ValueText(item);
    }
    return text;
  }
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

std::string OptionText(const TrainOptions& options, std::string_view name) {
  const OptionSpec* spec = FindOption(name);
  FOREBAY_CHECK(spec != nullptr);
  return ValueText(spec->get(options));
}

}  // namespace forebay
