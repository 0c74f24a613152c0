// The schedules by name, with the arguments of each: from this table come the choices of
// --schedule, the checks of --schedule_args, and their documentation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/options/lr_schedule.h"
#include "forebay/train/options/options.h"

namespace forebay {

struct LrScheduleArgSpec {
  enum class Kind : uint8_t { kReal, kWhole, kSwitch, kChoice };
  std::string_view name;
  Kind kind = Kind::kReal;
  std::string_view default_text;  // as documentation shows it; "required" when it has none
  double least = 0;
  double most = 0;
  bool above_least = false;               // least itself is not allowed
  bool below_most = false;                // most itself is not allowed
  std::vector<std::string_view> choices;  // kChoice: the value is the place of one in it
};

struct LrScheduleSpec {
  LrSchedule schedule = LrSchedule::kLinear;
  std::string_view name;
  std::string_view help;   // one line, no full stop
  bool has_warmup = true;  // --warmup goes before it
  std::vector<LrScheduleArgSpec> args;
};

const std::vector<LrScheduleSpec>& LrScheduleTable();
const LrScheduleSpec& SpecOf(LrSchedule schedule);

// `args`: an object of the schedule's arguments: numbers, true or false, names of choices.
// UsageError names the argument, what it may be, and the nearest name for one that there is not.
absl::StatusOr<LrScheduleArgs> ParseLrScheduleArgs(LrSchedule schedule, const Json& args);

// The schedule of a run of `num_steps`. UsageError also when a rate or a beta of some step is not
// usable: a rate that is negative or not finite, a beta1 that is not below 1 (DeepSpeed's OneCycle
// lets it grow).
absl::StatusOr<LrScheduleOptions> MakeLrSchedule(const TrainOptions& options, int64_t num_steps);

}  // namespace forebay
