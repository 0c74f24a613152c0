#include "forebay/train/options/lr_schedule_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

using ArgSpec = LrScheduleArgSpec;
using Kind = ArgSpec::Kind;

// As of --lr, but that a schedule may well begin or end at 0.
ArgSpec RateArg(std::string_view name, std::string_view default_text) {
  return {name, Kind::kReal, default_text, 0, 10};
}
ArgSpec RealArg(std::string_view name, std::string_view default_text, double least, double most) {
  return {name, Kind::kReal, default_text, least, most};
}
ArgSpec PositiveRealArg(std::string_view name, std::string_view default_text, double most) {
  return {name, Kind::kReal, default_text, 0, most, /*above_least=*/true};
}
ArgSpec MomentumArg(std::string_view name, std::string_view default_text) {
  ArgSpec arg = {name, Kind::kReal, default_text, 0, 1};
  arg.below_most = true;
  return arg;
}
ArgSpec StepsArg(std::string_view name, std::string_view default_text, double least) {
  return {name, Kind::kWhole, default_text, least, 1e12};
}
ArgSpec SwitchArg(std::string_view name, std::string_view default_text) {
  return {name, Kind::kSwitch, default_text, 0, 1};
}
ArgSpec ChoiceArg(std::string_view name, std::vector<std::string_view> choices) {
  ArgSpec arg = {name, Kind::kChoice, choices.front()};
  arg.choices = std::move(choices);
  return arg;
}

std::vector<ArgSpec> WarmupArgs() {
  return {StepsArg("warmup_num_steps", "1000", 1), ChoiceArg("warmup_type", {"log", "linear"})};
}

std::vector<ArgSpec> WarmupLrArgs(std::string_view default_max) {
  std::vector<ArgSpec> args = WarmupArgs();
  args.push_back(RateArg("warmup_min_lr", "0"));
  args.push_back(RateArg("warmup_max_lr", default_max));
  return args;
}

std::vector<ArgSpec> With(std::vector<ArgSpec> args, std::vector<ArgSpec> more) {
  std::ranges::move(more, std::back_inserter(args));
  return args;
}

std::vector<LrScheduleSpec> ForebaysOwn() {
  return {
      {LrSchedule::kConstant, "constant", "--lr throughout", true, {}},
      {LrSchedule::kLinear, "linear", "falls from --lr to 0", true, {}},
      {LrSchedule::kCosine, "cosine", "falls from --lr to 0 along half a cosine", true, {}},
      {LrSchedule::kPolynomial,
       "polynomial",
       "falls from --lr to end_lr as a power of what is left of the run",
       true,
       {PositiveRealArg("power", "1", 100), RateArg("end_lr", "0")}},
      {LrSchedule::kInverseSqrt,
       "inverse_sqrt",
       "falls from --lr as the inverse square root of the updates",
       true,
       {PositiveRealArg("timescale", "--warmup, or 10000 without one", 1e12)}},
  };
}

std::vector<LrScheduleSpec> PyTorchs() {
  return {{LrSchedule::kOneCycle,
           "one_cycle",
           "PyTorch's OneCycleLR: up to --lr and down again, beta1 against it",
           false,
           {PositiveRealArg("pct_start", "0.3", 1), ChoiceArg("anneal_strategy", {"cos", "linear"}),
            SwitchArg("cycle_momentum", "true"), MomentumArg("base_momentum", "0.85"),
            MomentumArg("max_momentum", "0.95"), PositiveRealArg("div_factor", "25", 1e12),
            PositiveRealArg("final_div_factor", "10000", 1e12)}}};
}

std::vector<LrScheduleSpec> DeepSpeeds() {
  return {
      {LrSchedule::kWarmupLr, "WarmupLR", "DeepSpeed's: up to warmup_max_lr, which it keeps", false,
       WarmupLrArgs("--lr")},
      {LrSchedule::kWarmupDecayLr, "WarmupDecayLR",
       "DeepSpeed's: up to warmup_max_lr, then down to 0 in a line", false,
       With(WarmupLrArgs("0.001"), {StepsArg("total_num_steps", "those of the run", 1)})},
      {LrSchedule::kWarmupCosineLr, "WarmupCosineLR",
       "DeepSpeed's: up to --lr, then down along half a cosine", false,
       With(WarmupArgs(),
            {StepsArg("total_num_steps", "those of the run", 1),
             RealArg("warmup_min_ratio", "0", 0, 1), RealArg("cos_min_ratio", "0.0001", 0, 1)})},
      {LrSchedule::kDeepSpeedOneCycle,
       "OneCycle",
       "DeepSpeed's: one cycle of lr and beta1 between two bounds, then decay; beta2 is 0.99",
       false,
       {RateArg("cycle_min_lr", "required"), RateArg("cycle_max_lr", "required"),
        RealArg("decay_lr_rate", "0", 0, 1e9), StepsArg("cycle_first_step_size", "2000", 1),
        StepsArg("cycle_second_step_size", "cycle_first_step_size", 0),
        StepsArg("cycle_first_stair_count", "0", 0),
        StepsArg("cycle_second_stair_count", "cycle_first_stair_count", 0),
        StepsArg("decay_step_size", "0", 0), SwitchArg("cycle_momentum", "true"),
        MomentumArg("cycle_min_mom", "0.8"), MomentumArg("cycle_max_mom", "0.9"),
        RealArg("decay_mom_rate", "0", 0, 1e9)}},
      {LrSchedule::kLrRangeTest,
       "LRRangeTest",
       "DeepSpeed's: rises without end, to find the highest usable rate",
       false,
       {RateArg("lr_range_test_min_lr", "0.001"), StepsArg("lr_range_test_step_size", "2000", 1),
        RealArg("lr_range_test_step_rate", "1", 0, 1e9),
        SwitchArg("lr_range_test_staircase", "false")}},
  };
}

std::vector<LrScheduleSpec> MakeLrScheduleTable() {
  std::vector<LrScheduleSpec> table;
  for (std::vector<LrScheduleSpec> part : {ForebaysOwn(), PyTorchs(), DeepSpeeds()}) {
    std::ranges::move(part, std::back_inserter(table));
  }
  return table;
}

std::string AllowedText(const ArgSpec& arg) {
  switch (arg.kind) {
    case Kind::kReal:
      return fmt::format("a number {} {} {} {}", arg.above_least ? "above" : "from", arg.least,
                         arg.below_most ? "to below" : "to", arg.most);
    case Kind::kWhole:
      return fmt::format("a whole number, {} or more", arg.least);
    case Kind::kSwitch:
      return "true or false";
    case Kind::kChoice:
      return fmt::format("{}", fmt::join(arg.choices, " or "));
  }
  FOREBAY_CHECK(false);
}

std::optional<double> ValueOf(const ArgSpec& arg, const Json& value) {
  if (arg.kind == Kind::kSwitch) {
    if (!value.is_boolean()) return std::nullopt;
    return value.get<bool>() ? 1.0 : 0.0;
  }
  if (arg.kind == Kind::kChoice) {
    if (!value.is_string()) return std::nullopt;
    const auto found = std::ranges::find(arg.choices, value.get_ref<const std::string&>());
    if (found == arg.choices.end()) return std::nullopt;
    return static_cast<double>(found - arg.choices.begin());
  }
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  const bool is_allowed = std::isfinite(number) &&
                          (arg.above_least ? number > arg.least : number >= arg.least) &&
                          (arg.below_most ? number < arg.most : number <= arg.most) &&
                          (arg.kind != Kind::kWhole || number == std::floor(number));
  return is_allowed ? std::optional(number) : std::nullopt;
}

absl::Status UnknownArg(const LrScheduleSpec& spec, const std::string& name) {
  std::vector<std::string> known;
  for (const ArgSpec& arg : spec.args) known.emplace_back(arg.name);
  if (known.empty()) {
    return UsageError(fmt::format(
        "--schedule_args: '{}' is given, and --schedule={} has no arguments", name, spec.name));
  }
  const std::string nearest = NearestName(name, known);
  return UsageError(
      fmt::format("--schedule_args: --schedule={} has no argument '{}'{}. It has {}", spec.name,
                  name, nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
                  fmt::join(known, ", ")));
}

absl::Status CheckRates(const LrScheduleOptions& options) {
  // Arguments bound all rates but those that go on to grow (LRRangeTest, the decay of OneCycle),
  // which the last step has at their worst; the samples find an early step to name.
  constexpr int64_t kMostSamples = 4096;
  const int64_t stride = std::max<int64_t>(1, options.num_steps / kMostSamples);
  for (int64_t sample = 1; sample <= options.num_steps + stride - 1; sample += stride) {
    const int64_t update = std::min(sample, options.num_steps);
    const ScheduledRates rates = RatesOf(options, update);
    if (!std::isfinite(rates.lr) || rates.lr < 0) {
      return UsageError(fmt::format("--schedule={}: the learning rate of step {} would be {}",
                                    SpecOf(options.schedule).name, update, rates.lr));
    }
    if (rates.beta1.has_value() && !(*rates.beta1 < 1)) {
      return UsageError(
          fmt::format("--schedule={}: beta1 of step {} would be {}, and must be below 1. Lower "
                      "decay_mom_rate, or raise decay_step_size",
                      SpecOf(options.schedule).name, update, *rates.beta1));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<LrScheduleSpec>& LrScheduleTable() {
  static const std::vector<LrScheduleSpec> table = MakeLrScheduleTable();
  return table;
}

const LrScheduleSpec& SpecOf(LrSchedule schedule) {
  const auto found = std::ranges::find(LrScheduleTable(), schedule, &LrScheduleSpec::schedule);
  FOREBAY_CHECK(found != LrScheduleTable().end());
  return *found;
}

absl::StatusOr<LrScheduleArgs> ParseLrScheduleArgs(LrSchedule schedule, const Json& args) {
  const LrScheduleSpec& spec = SpecOf(schedule);
  LrScheduleArgs parsed;
  for (const auto& [name, value] : args.items()) {
    const auto arg = std::ranges::find(spec.args, name, &ArgSpec::name);
    if (arg == spec.args.end()) return UnknownArg(spec, name);
    const std::optional<double> number = ValueOf(*arg, value);
    if (!number.has_value()) {
      return UsageError(fmt::format("--schedule_args: {}={} is not allowed; give {}", name,
                                    value.is_string() ? value.get<std::string>() : value.dump(),
                                    AllowedText(*arg)));
    }
    parsed.emplace(name, *number);
  }
  for (const ArgSpec& arg : spec.args) {
    if (arg.default_text == "required" && !parsed.contains(arg.name)) {
      return UsageError(fmt::format("--schedule={} needs '{}' in --schedule_args: {}", spec.name,
                                    arg.name, AllowedText(arg)));
    }
  }
  return parsed;
}

absl::StatusOr<LrScheduleOptions> MakeLrSchedule(const TrainOptions& options, int64_t num_steps) {
  LrScheduleOptions schedule;
  schedule.schedule = options.schedule;
  schedule.lr = options.lr;
  schedule.warmup = options.warmup;
  schedule.num_steps = num_steps;
  FOREBAY_ASSIGN_OR_RETURN(schedule.args,
                           ParseLrScheduleArgs(options.schedule, options.schedule_args));
  FOREBAY_RETURN_IF_ERROR(CheckRates(schedule));
  return schedule;
}

}  // namespace forebay
