// Of run_folder.h: run.json alone, without the store. Options of a run that goes on need no more.
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
  FOREBAY_ASSIGN_OR_RETURN(Json json, ReadJsonFile(paths.run_json, kMaxRunJsonBytes));
  const auto has_text = [&](const char* key) {
    return json.contains(key) && json[key].is_string();
  };
  if (!json.is_object() || !json.contains("format") || json["format"] != kRunFormat ||
      !has_text("state") || !has_text("store") || !has_text("model")) {
    return CorruptError(fmt::format(
        "'{}' is damaged or was written by another version of forebay (this one reads format {})",
        paths.run_json, kRunFormat));
  }
  return json;
}

}  // namespace forebay
