// The plan of a training run. `plan` prints this object; `train` executes it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/model/decoder_config.h"
#include "forebay/offload/plan.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/ask_machine.h"

namespace forebay {

struct Plan : OffloadPlan {
  int64_t tokens_per_step = 0;  // packed rows * seq, padding included
  // Models that OUT is to have room for, beside those that it has.
  int64_t exports_to_come = 0;
  int64_t num_steps = 0;  // 0: not known
};

// As MakeOffloadPlan, of the decoder's layers and step. UsageError also when --seq exceeds the
// model's positions. Pure.
absl::StatusOr<Plan> MakePlan(const DecoderConfig& model, const TrainOptions& options,
                              const MachineLimits& limits);

// {"fits", "ram_budget_bytes", "host_bytes", "nvme_bytes", ..., "terms": [...], "stripes": [...]}
// (docs/cli.md).
Json ToJson(const Plan& plan);
// The table that `plan` and the start of `train` print.
std::string FormatPlan(const Plan& plan, const DecoderConfig& model, const TrainOptions& options);

}  // namespace forebay
