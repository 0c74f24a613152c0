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
  app.add_option("--set", sets_, "sets one option after everything else; may be given many times")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  for (const OptionSpec& spec : OptionTable()) {
    std::string& text = texts_[spec.name];
    const std::string help = spec.help + DefaultNote(spec, use);
    CLI::Option* flag = spec.is_switch() ? app.add_flag("--" + spec.name, text, help)
                                         : app.add_option("--" + spec.name, text, help);
    if (!spec.is_switch()) flag->type_name(spec.value_name);
    flag->group(GroupName(spec.section));
    spec.adds_up ? flag->join(',') : flag->take_last();
    flags_.push_back(flag);
  }
}

OptionInputs OptionFlags::Inputs(const CommandContext& context) const {
  OptionInputs inputs;
  inputs.ds_config_file = ds_config_;
  inputs.config_file = config_;
  inputs.sets = sets_;
  inputs.unknown_flags = context.unknown_flags;
  for (size_t i = 0; i < flags_.size(); ++i) {
    const std::string& name = OptionTable()[i].name;
    if (flags_[i]->count() > 0) inputs.flags.emplace_back(name, texts_.at(name));
  }
  return inputs;
}

}  // namespace forebay
