#include "forebay/train/start/resolve_options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/data/packed_file.h"
#include "forebay/train/deepspeed/deepspeed_config.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_settings.h"
#include "forebay/train/options/lr_schedule_table.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/options/unknown_options.h"
#include "forebay/train/plan/most_tokens.h"

namespace forebay {
namespace {

constexpr char kFromDefault[] = "default";
constexpr char kFromPlanner[] = "planner";

// Values, origins and problems while the sources are read one after another.
class Resolver {
 public:
  Resolver() {
    for (const OptionSpec& spec : OptionTable()) origin_[spec.name] = kFromDefault;
  }

  void AddProblem(std::string problem) { problems_.push_back(std::move(problem)); }

  // For the user: of a run that goes on, of a configuration.
  void AddNote(std::string note) { notes_.push_back(std::move(note)); }

  // `where`: how the user wrote it, for messages ("--batch", "data.batch in run.json").
  void Set(const OptionSpec& spec, const Json& value, std::string_view where,
           std::string_view origin) {
    SetAs(spec, value, value.dump(), where, origin);
  }

  void SetText(const OptionSpec& spec, std::string_view text, std::string_view where,
               std::string_view origin) {
    const std::optional<Json> value = spec.parse(text);
    if (!value.has_value()) {
      AddProblem(fmt::format("{} is '{}'; allowed: {}{}", where, text, spec.allowed,
                             Explanation(spec, text)));
      return;
    }
    // As typed: JSON has no words for nan and inf.
    SetAs(spec, *value, text, where, origin);
  }

  bool IsGiven(const std::string& name) const {
    const std::string& origin = origin_.at(name);
    return origin != kFromDefault && origin != kFromPlanner;
  }

  // Sets what follows from other values, unless the user said it.
  template <typename T, typename Options>
  void Derive(const std::string& name, T Options::*member, T value) {
    if (IsGiven(name)) return;
    options_.*member = value;
    origin_[name] = kFromPlanner;
  }

  const TrainOptions& options() const { return options_; }

  absl::StatusOr<ResolvedOptions> Finish() const {
    if (problems_.size() == 1) return UsageError(problems_[0]);
    if (!problems_.empty()) {
      return UsageError(fmt::format("{} problems with the options:\n  {}", problems_.size(),
                                    fmt::join(problems_, "\n  ")));
    }
    ResolvedOptions resolved{options_, Json::object(), notes_};
    for (const OptionSpec& spec : OptionTable()) {
      resolved.resolved[spec.section][spec.name] = {{"value", spec.get(options_)},
                                                    {"origin", origin_.at(spec.name)}};
    }
    return resolved;
  }

 private:
  static std::string Explanation(const OptionSpec& spec, std::string_view text) {
    return spec.explain ? fmt::format(" ({})", spec.explain(text)) : "";
  }

  // `shown`: the value as the user wrote it.
  void SetAs(const OptionSpec& spec, const Json& value, std::string_view shown,
             std::string_view where, std::string_view origin) {
    if (spec.set(value, options_)) {
      origin_[spec.name] = origin;
    } else {
      AddProblem(fmt::format("{} is {}; allowed: {}{}", where, shown, spec.allowed,
                             spec.explain ? Explanation(spec, value.dump()) : ""));
    }
  }

  TrainOptions options_;
  std::map<std::string, std::string> origin_;
  std::vector<std::string> problems_;
  std::vector<std::string> notes_;
};

// resolved_config.json keeps values with their origins; a configuration written by hand keeps bare
// values.
bool HasOrigin(const Json& value) {
  return value.is_object() && value.contains("value") && value.contains("origin");
}

// Whether somebody chose the value: what the planner worked out is worked out again.
bool WasGiven(const Json& value) {
  return !HasOrigin(value) ||
         (value.at("origin") != kFromDefault && value.at("origin") != kFromPlanner);
}

void ReadSection(const std::string& section, const Json& keys, const std::string& file,
                 std::string_view origin, Resolver& resolver) {
  for (const auto& [key, value] : keys.items()) {
    const OptionSpec* spec = FindOption(key);
    const std::string instead = InsteadOfOption(key);
    if (spec == nullptr && !instead.empty() && HasOrigin(value)) {  // what a run was started with
      if (WasGiven(value)) {
        resolver.AddNote(fmt::format("'{}' of the run is no more: {}", key, instead));
      }
    } else if (spec == nullptr) {
      resolver.AddProblem(
          fmt::format("{}: {}", file, UnknownKey(fmt::format("{}.{}", section, key), key)));
    } else if (spec->section != section) {
      resolver.AddProblem(fmt::format("{}: the key '{}' belongs into the section '{}', not '{}'",
                                      file, key, spec->section, section));
    } else if (WasGiven(value)) {
      const Json& bare = HasOrigin(value) ? value.at("value") : value;
      const std::string where = fmt::format("{}.{} in {}", section, key, file);
      // Sizes and lists may be written as on the command line.
      bare.is_string() ? resolver.SetText(*spec, bare.get<std::string>(), where, origin)
                       : resolver.Set(*spec, bare, where, origin);
    }
  }
}

absl::Status ReadConfig(const std::string& file, Resolver& resolver) {
  const absl::StatusOr<Json> parsed =
      ReadJsonFile(file, kMaxConfigFileBytes, {.allow_comments = true});
  if (!parsed.ok() && !FileExists(file)) {
    return UsageError(fmt::format("--config: '{}' does not exist. Check the path", file));
  }
  // A configuration that cannot be read is a mistake in the command, not in model or data.
  if (!parsed.ok()) return UsageError("--config: " + MessageOf(parsed.status()));
  const Json& config = *parsed;
  if (!config.is_object()) {
    return UsageError(fmt::format("--config: {}: a configuration is an object of sections ({})",
                                  file, fmt::join(OptionSections(), ", ")));
  }
  for (const auto& [section, keys] : config.items()) {
    if (std::ranges::find(OptionSections(), section) == OptionSections().end()) {
      const OptionSpec* option = FindOption(section);
      resolver.AddProblem(option != nullptr
                              ? fmt::format("{}: the key '{}' belongs into the section '{}'", file,
                                            section, option->section)
                              : fmt::format("{}: unknown section '{}'{}; the sections are {}", file,
                                            section, DidYouMean(section, OptionSections(), ""),
                                            fmt::join(OptionSections(), ", ")));
    } else if (!keys.is_object()) {
      resolver.AddProblem(fmt::format("{}: the section '{}' is not an object", file, section));
    } else {
      ReadSection(section, keys, file, "config " + file, resolver);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDeepSpeed(const std::string& file, int num_ranks, Resolver& resolver) {
  FOREBAY_ASSIGN_OR_RETURN(const DeepSpeedConfig config, ReadDeepSpeedConfig(file, num_ranks));
  for (const auto& [section, keys] : config.sections.items()) {
    ReadSection(section, keys, file, "ds_config " + file, resolver);
  }
  for (const std::string& note : config.notes) resolver.AddNote(note);
  for (const std::string& problem : config.problems) resolver.AddProblem(problem);
  return absl::OkStatus();
}

void ReadSet(const std::string& text, Resolver& resolver) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    resolver.AddProblem(fmt::format("--set {}: write it as section.key=value or key=value", text));
    return;
  }
  std::string key = text.substr(0, equals);
  const size_t dot = key.find('.');
  const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
  if (dot != std::string::npos) key = key.substr(dot + 1);
  const OptionSpec* spec = FindOption(key);
  if (spec == nullptr) {
    resolver.AddProblem(fmt::format("--set {}: {}", text, UnknownKey(key, key)));
  } else if (!section.empty() && section != spec->section) {
    resolver.AddProblem(fmt::format("--set {}: the key '{}' belongs into the section '{}'", text,
                                    key, spec->section));
  } else {
    resolver.SetText(*spec, std::string_view(text).substr(equals + 1), "--set " + key, "--set");
  }
}

// What the run was started with: all that its user said then. What the planner worked out is worked
// out again.
absl::Status TakeRunSettings(const std::string& out, int rank, Resolver& resolver) {
  if (out.empty()) {
    return UsageError("--resume needs --out, the folder of the run that is to go on");
  }
  if (!IsRunFolder(out)) {
    return UsageError(fmt::format(
        "--resume: '{}' holds no run. {}", out,
        rank == 0 ? "Check --out, or leave out --resume to start one"
                  : "Where each rank has the whole state, copy the folder of rank 0 there, without "
                    "those of other ranks; else begin a run --from this one with another --out"));
  }
  FOREBAY_ASSIGN_OR_RETURN(const RunSettings settings, ReadRunSettings(out));
  if (!settings.note.empty()) resolver.AddNote(settings.note);
  const Json& config = settings.config;
  const std::string origin = "run " + out;
  static const std::set<std::string> kOnlyOnce = {"resume", "dry_run", "stop_after", "out",
                                                  "from",   "trace",   "trace_steps"};
  for (const OptionSpec& spec : OptionTable()) {
    const Json::json_pointer at("/" + spec.section + "/" + spec.name);
    if (kOnlyOnce.contains(spec.name) || !config.contains(at)) continue;
    const Json& entry = config.at(at);
    if (!WasGiven(entry)) continue;
    const std::string where = fmt::format("{}.{} in {}", spec.section, spec.name, settings.file);
    resolver.Set(spec, entry.at("value"), where, origin);
  }
  return absl::OkStatus();
}

// Files that each rank has of its own.
void TakeFilesOfRank(int rank, Resolver& resolver) {
  const std::string& out = resolver.options().out;
  const std::string& trace = resolver.options().trace;
  if (rank == 0) return;
  const auto set = [&](const char* name, const std::string& path) {
    resolver.SetText(*FindOption(name), path, fmt::format("--{}", name), "flag");
  };
  if (!out.empty()) set("out", RunFolderOfRank(out, rank));
  if (!trace.empty()) set("trace", TraceFileOfRank(trace, rank));
}

absl::Status ReadWhatIsSaid(const OptionInputs& inputs, Resolver& resolver) {
  if (!inputs.ds_config_file.empty())
    FOREBAY_RETURN_IF_ERROR(ReadDeepSpeed(inputs.ds_config_file, inputs.num_ranks, resolver));
  if (!inputs.config_file.empty())
    FOREBAY_RETURN_IF_ERROR(ReadConfig(inputs.config_file, resolver));
  for (const auto& [name, text] : inputs.flags) {
    const OptionSpec* spec = FindOption(name);
    if (spec != nullptr) resolver.SetText(*spec, text, GivenAs(*spec), "flag");
    if (spec != nullptr) continue;
    const std::string problem =
        ForEachArgument(name, text, [&](const OptionSpec& argument, std::string_view value) {
          resolver.SetText(argument, value, GivenAs(argument), "flag");
        });
    if (!problem.empty()) resolver.AddProblem(problem);
  }
  for (const std::string& set : inputs.sets) ReadSet(set, resolver);
  TakeFilesOfRank(inputs.rank, resolver);
  return absl::OkStatus();
}

// Whether two paths name one place, as far as it exists.
bool SamePlace(const std::string& a, const std::string& b) {
  std::error_code error_a, error_b;
  const auto canonical_a = std::filesystem::weakly_canonical(a, error_a);
  const auto canonical_b = std::filesystem::weakly_canonical(b, error_b);
  return !error_a && !error_b && canonical_a == canonical_b;
}

// What Apex's presets come to here (docs/options.md). As there, what is said otherwise counts.
void DeriveOptLevel(Resolver& resolver) {
  const OptLevel level = resolver.options().opt_level;
  if (level == OptLevel::kNone) return;
  resolver.Derive("precision", &TrainOptions::precision,
                  level == OptLevel::kO0 ? cpu::Precision::kFp32 : cpu::Precision::kFp16);
  if (resolver.options().precision != cpu::Precision::kFp16) return;
  resolver.Derive("loss_scaling", &TrainOptions::loss_scaling, LossScaling::kTorch);
  if (level == OptLevel::kO3) resolver.Derive("loss_scale", &TrainOptions::loss_scale, 1.0);
}

void DeriveValues(Resolver& resolver) {
  DeriveOptLevel(resolver);
  const DType dtype = cpu::WeightDType(resolver.options().precision);
  resolver.Derive("layout", &TrainOptions::layout, ExactLayoutOf(dtype));
  resolver.Derive("grad_dtype", &TrainOptions::grad_dtype, dtype);
  resolver.Derive("export_dtype", &TrainOptions::export_dtype, dtype);
  if (resolver.options().loss_scaling == LossScaling::kTorch) {
    resolver.Derive("loss_scale_window", &TrainOptions::loss_scale_window, int64_t{2000});
  }
  if (resolver.options().optimizer == OptimizerKind::kLion) {
    // What Chen et al. 2023 train with.
    resolver.Derive("betas", &TrainOptions::beta1, 0.9);
    resolver.Derive("betas", &TrainOptions::beta2, 0.99);
  }
  const std::optional<int64_t> seq = PackedRowTokens(resolver.options().data);
  if (seq.has_value()) resolver.Derive("seq", &TrainOptions::seq, *seq);
}

void CheckRequired(OptionsUse use, Resolver& resolver) {
  for (const OptionSpec& spec : OptionTable()) {
    if (IsRequired(spec.name, use) && OptionText(resolver.options(), spec.name).empty()) {
      resolver.AddProblem(fmt::format("--{} is required: {}", spec.name, spec.help));
    }
  }
}

void CheckSwapFolders(OptionsUse use, Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  const std::vector<std::string>& folders = options.nvme;
  for (size_t i = 0; i < folders.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!SamePlace(folders[i], folders[j])) continue;
      resolver.AddProblem(
          fmt::format("--nvme: '{}' and '{}' are the same folder; name each folder once",
                      folders[j], folders[i]));
    }
  }
  const std::string joined = fmt::format("{}", fmt::join(folders, ","));
  if (folders.size() > 1 && FileExists(joined) && !std::ranges::all_of(folders, FileExists)) {
    resolver.AddProblem(fmt::format(
        "--nvme={0}: commas part folders, and '{0}' is one folder. Name it through a link without "
        "a comma, or in --config as a list: {{\"offload\": {{\"nvme\": [\"{0}\"]}}}}",
        joined));
  }
  // A run that goes on has its weights, and may be told only where some of its folders are now. A
  // plan has nothing but what it is told.
  const size_t num_folders = std::max<size_t>(1, folders.size());
  const bool goes_on = use == OptionsUse::kTrain && options.resume;
  if (!goes_on && !options.nvme_weights.empty() && options.nvme_weights.size() != num_folders) {
    resolver.AddProblem(
        fmt::format("--set=nvme_weights={} has {} numbers for {} folder{} of --nvme; "
                    "give one for each",
                    OptionText(options, "nvme_weights"), options.nvme_weights.size(), num_folders,
                    num_folders == 1 ? "" : "s"));
  }
}

// As in PyTorch. (DeepSpeed's OneCycle leaves alone what has no betas: NextUpdate.)
void CheckCycledMomentum(const LrScheduleArgs& args, Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  const bool is_sgd = options.optimizer == OptimizerKind::kSgd;
  const bool has_momentum = is_sgd ? options.momentum > 0 : HasBetas(options.optimizer);
  if (options.schedule != LrSchedule::kOneCycle || has_momentum) return;
  const auto cycles = args.find("cycle_momentum");
  if (cycles != args.end() && cycles->second == 0) return;
  resolver.AddProblem(
      fmt::format("--schedule=one_cycle moves the momentum, and --optimizer={} has none. Give {}"
                  "--schedule_args=cycle_momentum=false",
                  NameOf(options.optimizer), is_sgd ? "--optimizer_args=momentum, or " : ""));
}

void CheckSchedule(Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  const LrScheduleSpec& spec = SpecOf(options.schedule);
  const auto args = ParseLrScheduleArgs(options.schedule, options.schedule_args);
  if (!args.ok()) resolver.AddProblem(MessageOf(args.status()));
  if (args.ok()) CheckCycledMomentum(*args, resolver);
  if (spec.has_warmup || options.warmup == 0) return;
  const bool has_own = std::ranges::any_of(
      spec.args, [](const LrScheduleArgSpec& arg) { return arg.name == "warmup_num_steps"; });
  resolver.AddProblem(fmt::format(
      "--warmup={} does not go with --schedule={}, which has a rise of its own. Leave --warmup "
      "out{}",
      options.warmup, spec.name,
      has_own ? fmt::format(", or give --schedule_args=warmup_num_steps={}", options.warmup) : ""));
}

// Evaluations and exports commit.
void CheckCommitsOfDelayedUpdates(Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  if (options.delay_update_from == 0 || options.commit_every < 2) return;
  for (const auto& [name, every] :
       {std::pair("eval_every", options.eval_every), std::pair("save_every", options.save_every)}) {
    if (every % options.commit_every == 0) continue;
    resolver.AddProblem(fmt::format(
        "--{}={} commits a step where --commit_every={} has none, and a commit applies the update "
        "that --delay_update_from={} delays. Give a multiple of {}",
        name, every, options.commit_every, options.delay_update_from, options.commit_every));
  }
}

// What is said of the optimizer is something that the one chosen has.
void CheckOptimizer(Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  const OptimizerKind kind = options.optimizer;
  const auto check = [&](const char* name, bool has, const char* whose) {
    if (has || !resolver.IsGiven(name)) return;
    resolver.AddProblem(fmt::format("{}={} is of {}; --optimizer={} has none. Leave it out",
                                    GivenAs(*FindOption(name)), OptionText(options, name), whose,
                                    NameOf(kind)));
  };
  check("betas", HasBetas(kind), "adamw, adam and lion");
  check("eps", HasEps(kind), "adamw, adam and adagrad");
  check("momentum", kind == OptimizerKind::kSgd, "sgd");
  check("nesterov", kind == OptimizerKind::kSgd, "sgd");
  if (kind == OptimizerKind::kSgd && options.nesterov && options.momentum == 0) {
    resolver.AddProblem("--optimizer_args=nesterov needs --optimizer_args=momentum above 0");
  }
}

void CheckPrecision(Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  const DType dtype = cpu::WeightDType(options.precision), stored = WeightDType(options.layout);
  if (stored != dtype) {
    resolver.AddProblem(fmt::format(
        "--layout={} does not go with --precision={}: matrix products read the weights as they are "
        "stored. Give --layout={}, or --precision={}",
        NameOf(options.layout), NameOf(dtype),
        dtype == DType::kBF16 ? "bf16, bf16-moments or int8-moments" : NameOf(dtype),
        NameOf(stored)));
  }
  for (const std::string_view name : {"grad_dtype", "reduce_dtype"}) {
    if (dtype == DType::kF16 || OptionText(options, name) != "fp16") continue;
    resolver.AddProblem(fmt::format(
        "{}=fp16 does not go with --precision={}, which does not scale the loss: small gradients "
        "would vanish. Leave it out, or give --precision=fp16",
        GivenAs(*FindOption(name)), NameOf(dtype)));
  }
}

void CheckLossScaling(Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  const bool is_fp16 = options.precision == cpu::Precision::kFp16;
  const auto check = [&](bool acts, const char* why, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (acts || !resolver.IsGiven(name)) continue;
      resolver.AddProblem(fmt::format("{}={} {}. Leave it out", GivenAs(*FindOption(name)),
                                      OptionText(options, name), why));
    }
  };
  if (!is_fp16) {
    const std::string why = fmt::format("is of --precision=fp16; --precision={} scales no loss",
                                        NameOf(cpu::WeightDType(options.precision)));
    check(false, why.c_str(),
          {"loss_scaling", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
           "consecutive_hysteresis", "min_loss_scale"});
    return;
  }
  const std::string fixed =
      fmt::format("moves no loss scale that --loss_scaling_args=loss_scale={} fixes",
                  OptionText(options, "loss_scale"));
  check(options.loss_scale == 0, fixed.c_str(),
        {"initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis",
         "min_loss_scale"});
  if (options.loss_scale > 0) return;
  check(options.loss_scaling == LossScaling::kZero, "is of --loss_scaling=zero",
        {"hysteresis", "consecutive_hysteresis"});
  check(options.loss_scaling != LossScaling::kTorch, "is not of --loss_scaling=torch",
        {"min_loss_scale"});
  const bool has_least = options.loss_scaling != LossScaling::kTorch;
  if (has_least && options.min_loss_scale > std::ldexp(1.0, options.initial_scale_power)) {
    resolver.AddProblem(
        fmt::format("--loss_scaling_args=min_loss_scale={} is above the scale that "
                    "--loss_scaling_args=initial_scale_power={} starts with",
                    OptionText(options, "min_loss_scale"), options.initial_scale_power));
  }
}

void CheckTogether(OptionsUse use, Resolver& resolver) {
  const TrainOptions& options = resolver.options();
  CheckOptimizer(resolver);
  CheckPrecision(resolver);
  CheckLossScaling(resolver);
  const int64_t tokens_per_step = options.batch * options.accum * options.seq;
  if (tokens_per_step > kMostTokensAtOnce) {
    resolver.AddProblem(fmt::format(
        "--batch={} times --accum={} times --seq={} makes steps of {} tokens; the most is {}",
        options.batch, options.accum, options.seq, tokens_per_step, kMostTokensAtOnce));
  }
  if (resolver.IsGiven("steps") && options.steps > 0 && resolver.IsGiven("epochs")) {
    resolver.AddProblem("--steps and --epochs exclude one another; give one");
  }
  CheckSchedule(resolver);
  if (options.steps > 0 && options.warmup > options.steps) {
    resolver.AddProblem(fmt::format(
        "--warmup={} is longer than the run (--steps={}), so the learning rate would never "
        "reach --lr",
        options.warmup, options.steps));
  }
  if (options.eval_every > 0 && options.eval_data.empty()) {
    resolver.AddProblem(fmt::format("--eval_every={} needs --eval_data", options.eval_every));
  }
  if (options.save_every > 0 && options.export_format == ExportFormat::kNone) {
    resolver.AddProblem(
        fmt::format("--save_every={} does not go with --export=none", options.save_every));
  }
  if (options.resume && !options.from.empty()) resolver.AddProblem("--resume begins no run --from");
  if (!options.resume && options.commit_every > 0 && options.durability == Durability::kNone) {
    resolver.AddProblem(
        fmt::format("--commit_every={} does not go with --durability=none, which commits when the "
                    "run stops, evaluates or exports",
                    options.commit_every));
  }
  if (options.trace.empty() && options.trace_steps.first > 0) {
    resolver.AddProblem(fmt::format("--set=trace_steps={} needs --trace, the file to write",
                                    OptionText(options, "trace_steps")));
  }
  for (std::string& problem : ContradictionsOf(options)) resolver.AddProblem(std::move(problem));
  CheckCommitsOfDelayedUpdates(resolver);
  CheckSwapFolders(use, resolver);
  if (!options.out.empty() && !options.model.empty() && SamePlace(options.out, options.model)) {
    resolver.AddProblem(fmt::format(
        "--out={} is the model folder; choose another, so that nothing of it is overwritten",
        options.out));
  }
}

}  // namespace

bool IsRequired(std::string_view option, OptionsUse use) {
  if (option == "model") return true;
  return use == OptionsUse::kTrain && (option == "data" || option == "out");
}

absl::StatusOr<ResolvedOptions> ResolveOptions(const OptionInputs& inputs, OptionsUse use) {
  Resolver resolver;
  for (const std::string& flag : inputs.unknown_flags) resolver.AddProblem(UnknownFlag(flag));
  // Which run goes on is said like all else, but its settings come before what is said.
  Resolver said;
  FOREBAY_RETURN_IF_ERROR(ReadWhatIsSaid(inputs, said));
  if (said.options().resume) {
    FOREBAY_RETURN_IF_ERROR(TakeRunSettings(said.options().out, inputs.rank, resolver));
  } else if (const std::string& from = said.options().from; !from.empty()) {
    if (!IsRunFolder(from))
      return UsageError(fmt::format("--from: '{}' holds no run. Give the --out of one", from));
    FOREBAY_RETURN_IF_ERROR(TakeRunSettings(from, /*rank=*/0, resolver));
  }
  FOREBAY_RETURN_IF_ERROR(ReadWhatIsSaid(inputs, resolver));
  DeriveValues(resolver);
  CheckRequired(use, resolver);
  CheckTogether(use, resolver);
  return resolver.Finish();
}

ResolvedOptions ResolvedFrom(const TrainOptions& options, std::string_view origin) {
  ResolvedOptions resolved{options, Json::object(), {}};
  for (const OptionSpec& spec : OptionTable()) {
    resolved.resolved[spec.section][spec.name] = {{"value", spec.get(options)}, {"origin", origin}};
  }
  return resolved;
}

}  // namespace forebay
