#include "forebay/train/files/run_settings.h"

#include <optional>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

bool IsAllowed(const OptionSpec& spec, const Json& value) {
  TrainOptions scratch;
  return spec.set(value, scratch);
}

// As a run of these settings would have recorded them, but for what changes no result: where the
// data is, memory, tiers. What has its default is left out, as nobody has to have said it.
Json SettingsOf(const std::string& model, const Json& fingerprint) {
  Json config = {{"model", {{"model", {{"value", model}, {"origin", "run.json"}}}}}};
  const TrainOptions defaults;
  for (const auto& [name, text] : fingerprint.items()) {
    const OptionSpec* const spec = FindOption(name);
    const bool is_digest = name == "model" || name == "data";
    if (spec == nullptr || is_digest) continue;
    const std::string spelled = text.is_string() ? text.get<std::string>() : text.dump();
    if (spelled == OptionText(defaults, name)) continue;
    const std::optional<Json> value = spec->parse(spelled);
    if (!value.has_value() || !IsAllowed(*spec, *value)) continue;
    config[spec->section][spec->name] = {{"value", *value}, {"origin", "run.json"}};
  }
  return config;
}

}  // namespace

absl::StatusOr<Json> ReadSettingsFile(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(Json config, ReadJsonFile(path, kMaxConfigFileBytes));
  const auto damaged = [&](const std::string& name, const Json& value, const std::string& what) {
    return CorruptError(fmt::format("'{}' is damaged: '{}' is {}, and {} was expected", path, name,
                                    value.dump(), what));
  };
  if (!config.is_object()) return damaged("all of it", config, "an object of sections");
  for (const OptionSpec& spec : OptionTable()) {
    if (!config.contains(spec.section)) continue;
    Json& section = config[spec.section];
    if (!section.is_object()) return damaged(spec.section, section, "an object");
    if (!section.contains(spec.name)) continue;
    const std::string name = spec.section + "." + spec.name;
    Json& entry = section[spec.name];
    const bool is_whole = entry.is_object() && entry.contains("value") &&
                          entry.contains("origin") && entry["origin"].is_string();
    if (!is_whole) return damaged(name, entry, "an object of a value and its origin");
    // A setting that nobody chose is as the option table has it: an empty path, for example.
    if (entry["value"] == spec.get(TrainOptions())) continue;
    // Of earlier versions; it had the same store.
    if (spec.name == "durability" && entry["value"] == "replay") entry["value"] = "step";
    if (!IsAllowed(spec, entry["value"])) return damaged(name, entry["value"], spec.allowed);
  }
  return config;
}

absl::StatusOr<RunSettings> ReadRunSettings(const std::string& out) {
  const RunPaths paths(out);
  RunSettings settings;
  settings.file = paths.resolved_config;
  absl::StatusOr<Json> config = ReadSettingsFile(paths.resolved_config);
  if (config.ok()) {
    settings.config = *std::move(config);
    return settings;
  }
  absl::StatusOr<Json> copy = ReadSettingsFile(paths.resolved_config_copy);
  if (copy.ok()) {
    settings.config = *std::move(copy);
    settings.file = paths.resolved_config_copy;
    settings.note = NoteOfCopy(config.status(), settings.file);
    return settings;
  }
  FOREBAY_ASSIGN_OR_RETURN(const Json run, ReadRunJson(out));
  // A run that was made by `forebay init --run` and never trained has neither.
  settings.file = paths.run_json;
  const std::string model = ModelOf(out, run);
  if (!run.contains("fingerprint") || run["fingerprint"].is_null()) {
    settings.config = SettingsOf(model, Json::object());
    return settings;
  }
  settings.config = SettingsOf(model, run["fingerprint"]);
  settings.note = fmt::format(
      "{}, and so is its copy '{}'. The settings that change the result are those of '{}'; say the "
      "others again (--data)",
      MessageOf(config.status()), paths.resolved_config_copy, paths.run_json);
  return settings;
}

}  // namespace forebay
