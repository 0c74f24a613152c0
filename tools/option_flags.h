// The option table (train/options/option_table.h) as flags of a command, and --config and --set
// beside them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "forebay/tools/command.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {

class OptionFlags {
 public:
  // Adds every flag of the table to `app`, grouped by section. `this` must outlive the parse.
  void Declare(CLI::App& app, OptionsUse use);
  // What was given; call after the parse.
  OptionInputs Inputs(const CommandContext& context) const;

 private:
  std::map<std::string, std::string> texts_;  // by name; CLI11 writes here
  std::vector<const CLI::Option*> flags_;     // in the order of the table
  std::string config_, ds_config_;
  std::vector<std::string> sets_;
};

}  // namespace forebay
