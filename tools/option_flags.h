// The option table (train/options/option_table.h) as flags of a command, and --config and --set
// beside them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "forebay/tools/command.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {

// A line or two for each option that only --set gives, for --help_all.
std::string OptionsOnlyToSet();

class OptionFlags {
 public:
  // Adds every flag of the table to `app`, grouped by section. `this` must outlive the parse.
  void Declare(CLI::App& app, OptionsUse use);
  // What was given; call after the parse.
  OptionInputs Inputs(const CommandContext& context) const;

 private:
  void DeclareArgs(CLI::App& app, OptionForm form);

  std::map<std::string, std::string> texts_;  // by name; CLI11 writes here
  std::vector<std::pair<std::string, const CLI::Option*>> flags_;
  std::string config_, ds_config_;
  std::vector<std::string> sets_;
};

}  // namespace forebay
