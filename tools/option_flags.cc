#include "forebay/tools/option_flags.h"

#include "fmt/format.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

std::string GroupName(const std::string& section) {
  static const std::map<std::string, std::string> names = {{"model", "Model"},
                                                           {"data", "Data"},
                                                           {"optim", "Optimization"},
                                                           {"offload", "Offload"},
                                                           {"io", "Files"}};
  return names.at(section);
}

std::string DefaultNote(const OptionSpec& spec, OptionsUse use) {
  if (IsRequired(spec.name, use)) return " (required)";
  const bool none =
      spec.is_switch() || spec.default_text.empty() || IsRequired(spec.name, OptionsUse::kTrain);
  return none ? "" : fmt::format(" (default: {})", spec.default_text);
}

}  // namespace

void OptionFlags::Declare(CLI::App& app, OptionsUse use) {
  app.add_option("--config", config_,
                 "JSON file with these options by section (comments are allowed)")
      ->type_name("FILE")
      ->take_last();
  app.add_option("--ds_config", ds_config_,
                 "DeepSpeed configuration, whose keys are used, ignored with a note, or refused")
      ->type_name("FILE")
      ->take_last();
  app.add_option("--set", sets_,
                 "sets one option after everything else; may be given many times. --help_all lists "
                 "options that have no flag")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  for (const OptionSpec& spec : OptionTable()) {
    const std::string_view args = ArgsFlag(spec.form);
    if (!args.empty()) {
      DeclareArgs(app, spec.form);
    } else if (spec.form == OptionForm::kFlag) {
      const std::string help = spec.help + DefaultNote(spec, use);
      std::string& text = texts_[spec.name];
      CLI::Option* flag = spec.is_switch() ? app.add_flag("--" + spec.name, text, help)
                                           : app.add_option("--" + spec.name, text, help);
      if (!spec.is_switch()) flag->type_name(spec.value_name);
      flag->group(GroupName(spec.section));
      spec.adds_up ? flag->join(',') : flag->take_last();
      flags_.emplace_back(spec.name, flag);
    }
  }
}

// Once, in the place of the first of its arguments.
void OptionFlags::DeclareArgs(CLI::App& app, OptionForm form) {
  const std::string name(ArgsFlag(form));
  if (texts_.contains(name)) return;
  std::string help;
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.form != form) continue;
    help += fmt::format("{}{} ({}, default: {})", help.empty() ? "" : "; ", spec.name, spec.help,
                        spec.default_text);
  }
  CLI::Option* const flag = app.add_option("--" + name, texts_[name], help);
  flag->type_name("NAME=X,...")->group(GroupName("optim"))->join(',');
  flags_.emplace_back(name, flag);
}

std::string OptionsOnlyToSet() {
  std::string text;
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.form != OptionForm::kSet) continue;
    text += fmt::format("  {}={}\n      {} (default: {})\n", spec.name,
                        spec.is_switch() ? "true" : spec.value_name, spec.help, spec.default_text);
  }
  return text;
}

OptionInputs OptionFlags::Inputs(const CommandContext& context) const {
  OptionInputs inputs;
  inputs.ds_config_file = ds_config_;
  inputs.config_file = config_;
  inputs.sets = sets_;
  inputs.unknown_flags = context.unknown_flags;
  for (const auto& [name, flag] : flags_) {
    if (flag->count() > 0) inputs.flags.emplace_back(name, texts_.at(name));
  }
  return inputs;
}

}  // namespace forebay
