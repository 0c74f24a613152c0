// The one table of options: from it come the flags of `train` and `plan`, the keys of --config and
// --set, the checks of ranges, the help text, docs/options.md and resolved_config.json. To add an
// option, add a field to TrainOptions and one row to option_table.cc.
//
// Not for: the order of sources and checks between options (resolve_options.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/json.h"
#include "forebay/train/options/options.h"

namespace forebay {

// How an option is given on the command line. Each is a key of --config and --set by its name.
enum class OptionForm : uint8_t {
  kFlag,             // --clip=1
  kOptimizerArgs,    // --optimizer_args=eps=1e-8
  kLossScalingArgs,  // --loss_scaling_args=hysteresis=1
  kSet,              // --set=tile_elems=1M: for measurements, and for what seldom changes
};
// "optimizer_args" and "loss_scaling_args"; "" for the others.
std::string_view ArgsFlag(OptionForm form);

struct OptionSpec {
  std::string name;  // "weight_decay": the flag is --weight_decay (or --weight-decay)
  OptionForm form = OptionForm::kFlag;
  std::string section;       // one of OptionSections()
  std::string value_name;    // "N", "SIZE", "PATH", "bf16|fp32"; empty for a switch
  std::string allowed;       // what a value may be, for messages: "a whole number from 1 to 65536"
  std::string default_text;  // as help shows it: "4", "OUT/swap"
  std::string help;          // one line, no full stop
  bool adds_up = false;      // commas join what is given several times; else the last counts

  bool is_switch() const { return value_name.empty(); }

  // The value that `text` spells on the command line; nullopt when it is of another type.
  std::function<std::optional<Json>(std::string_view text)> parse;
  // Sets the option; false, with nothing changed, when `value` is of another type or not allowed.
  std::function<bool(const Json& value, TrainOptions& options)> set;
  // What is wrong with a value, as JSON, that `parse` or `set` refuses: where `allowed` leaves one
  // to search for it. May be empty.
  std::function<std::string(std::string_view text)> explain;
  // The option's value as --config would spell it.
  std::function<Json(const TrainOptions& options)> get;
};

// In the order of sections and of help. Names are unique over all sections.
const std::vector<OptionSpec>& OptionTable();
// "model", "data", "optim", "offload", "io".
const std::vector<std::string>& OptionSections();
// nullptr when there is no option of that name. Hyphens count as underscores.
const OptionSpec* FindOption(std::string_view name);
// "--clip", "--optimizer_args=eps", "--set=tile_elems": "=" and the value follow.
std::string GivenAs(const OptionSpec& spec);
// "0.9,0.999", "bf16", "true": the value of an option as a flag would spell it. Requires: the
// option exists.
std::string OptionText(const TrainOptions& options, std::string_view name);

// A configuration value as a flag would spell it ("1e-05", "0.9,0.999", "some text").
std::string ValueText(const Json& value);
// Flag spelling to the table's: "eval-data" to "eval_data".
std::string WithUnderscores(std::string_view name);

}  // namespace forebay
