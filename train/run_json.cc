// Of run_folder.h: run.json alone, without the store. Options of a run that goes on need no more.
#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/train/run_folder.h"

namespace forebay {
namespace {

constexpr int64_t kMaxRunJsonBytes = 1 << 20;

}  // namespace

bool IsRunFolder(const std::string& directory) {
  return FileExists(RunPaths(directory).run_json);
}

absl::StatusOr<Json> ReadRunJson(const std::string& run_directory) {
  const RunPaths paths(run_directory);
  if (!IsRunFolder(run_directory)) {
    return BadInputError(
        fmt::format("'{}' is not a run folder of forebay (it has no run.json)", run_directory));
  }
  const std::string advice = fmt::format(
      "Put back a copy of it. What the run trained is in '{}' and its swap area, untouched; where "
      "nothing of it is needed remove the folders",
      run_directory);
  absl::StatusOr<Json> parsed = ReadJsonFile(paths.run_json, kMaxRunJsonBytes);
  if (ExitCodeOf(parsed.status()) == ExitCode::kBadInput) {
    return CorruptError(fmt::format("{}. {}", MessageOf(parsed.status()), advice));
  }
  FOREBAY_RETURN_IF_ERROR(parsed.status());
  Json json = *std::move(parsed);
  if (json.is_object() && json.contains("format") && json["format"].is_number_integer() &&
      json["format"] != kRunFormat) {
    return CorruptError(fmt::format(
        "'{}' has format {}; this program reads format {}. Finish the run with the forebay that "
        "began it, or begin a new one from its model",
        paths.run_json, json["format"].dump(), kRunFormat));
  }
  const auto has_text = [&](const char* key) {
    return json.contains(key) && json[key].is_string();
  };
  const auto has_stores = [&] {
    if (!json.contains("stores") || !json["stores"].is_array() || json["stores"].empty()) {
      return false;
    }
    return std::ranges::all_of(json["stores"], [](const Json& s) { return s.is_string(); });
  };
  const bool is_whole = json.is_object() && json.contains("format") &&
                        json["format"] == kRunFormat && has_text("state") && has_stores() &&
                        has_text("store_uuid") && has_text("model");
  if (!is_whole) {
    return CorruptError(fmt::format("'{}' is damaged: not all is there that a run has. {}",
                                    paths.run_json, advice));
  }
  return json;
}

std::string StoreUuidOf(const Json& json) {
  const auto uuid = json.find("store_uuid");
  return uuid != json.end() && uuid->is_string() ? uuid->get<std::string>() : "";
}

}  // namespace forebay
