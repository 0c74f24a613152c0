// Other settings of a run, each planned beside the run as it is: `plan --what_if`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {

struct Alternative {
  std::string settings;       // "ram=2GiB", "layout=int8-moments+batch=8"; empty: the run as it is
  absl::StatusOr<Plan> plan;  // or the DoesNotFitError
};

// Plans a run with these options.
using PlanFunction = std::function<absl::StatusOr<Plan>(const TrainOptions&)>;

// The alternatives in texts such as "ram=2GiB,ram=4GiB,layout=int8-moments+batch=8": commas
// separate them, and + joins settings to one. A comma or + that no NAME= follows is part of a
// value. UsageError for what is no NAME=VALUE.
absl::StatusOr<std::vector<std::string>> SplitAlternatives(const std::vector<std::string>& texts);

// The run as `inputs` have it, and each of `alternatives` in its place. UsageError that names the
// alternative which is none; the errors of `plan` but for DoesNotFitError.
absl::StatusOr<std::vector<Alternative>> PlanAlternatives(
    const OptionInputs& inputs, const std::vector<std::string>& alternatives,
    const PlanFunction& plan);

// The same for the settings that most often help, as far as they are possible here: half and twice
// the memory, longer steps, other layouts, tiers and durability.
absl::StatusOr<std::vector<Alternative>> PlanUsualAlternatives(const OptionInputs& inputs,
                                                               const PlanFunction& plan);

// A row for each (docs/cli.md, "plan").
Json ToJson(const std::vector<Alternative>& alternatives);
std::string FormatAlternatives(const std::vector<Alternative>& alternatives);

}  // namespace forebay
