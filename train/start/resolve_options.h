// From everything that a user said to one checked TrainOptions, with the origin of every value.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/train/options/options.h"

namespace forebay {

// What the options are for; decides which must be given.
enum class OptionsUse : uint8_t {
  kTrain,  // --model, --data and --out
  kPlan,   // --model
};

bool IsRequired(std::string_view option, OptionsUse use);

struct OptionInputs {
  std::string ds_config_file;  // of --ds_config; empty: none
  std::string config_file;     // of --config; empty: none
  // Name and text, in the order given: of options, and ArgsFlag with its arguments.
  std::vector<std::pair<std::string, std::string>> flags;
  std::vector<std::string> sets;           // "optim.lr=1e-5" or "lr=1e-5", in the order given
  std::vector<std::string> unknown_flags;  // as typed ("--bacth=4"): reported with the rest
  // This process in a run of several: --out is made this rank's folder (RunFolderOfRank), --trace a
  // file of its own, and DeepSpeed's sizes are counted for all ranks.
  int rank = 0;
  int num_ranks = 1;
};

// Each source overrides the ones before it:
//   defaults < the run's own settings (--resume) < --ds_config < --config < flags < --set
// then what follows from other values is filled in (origin "planner"): layout and grad_dtype from
// precision, seq from data that is packed already.
// --ds_config is a DeepSpeed configuration (train/deepspeed/deepspeed_config.h). --config is JSON
// with comments and the sections of OptionSections(); a resolved_config.json is accepted too.
//
// UsageError that lists every problem at once: unknown names with the nearest known one, values
// that are not allowed, options that exclude one another, a configuration that cannot be read.
absl::StatusOr<ResolvedOptions> ResolveOptions(const OptionInputs& inputs, OptionsUse use);

// {"section": {"key": {"value", "origin"}}} for options that were made in a program, all with
// origin `origin`.
ResolvedOptions ResolvedFrom(const TrainOptions& options, std::string_view origin);

}  // namespace forebay
