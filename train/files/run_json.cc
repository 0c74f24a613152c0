// Of run_folder.h: run.json alone, without the store. Options of a run that goes on need no more.
#include <algorithm>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json_fields.h"
#include "forebay/base/output_folder.h"
#include "forebay/swap/tiles/stripes.h"
#include "forebay/train/files/export_files.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

constexpr int64_t kMaxRunJsonBytes = 1 << 20;
constexpr int64_t kMostParts = 1 << 20;

bool IsRunJsonPath(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().find('\0') == std::string::npos;
}

bool IsRunJsonState(const Json& value) {
  return value == kRunCreating || value == kRunReady || value == kRunUnkept;
}

bool IsRunJsonStore(const Json& value) {
  return IsRunJsonPath(value) && !value.get_ref<const std::string&>().empty();
}

bool AreRunJsonStores(const Json& value) {
  return value.is_array() && !value.empty() && value.size() <= kMaxStripes &&
         std::ranges::all_of(value, IsRunJsonStore);
}

bool IsRunJsonFingerprint(const Json& value) {
  return value.is_null() || value.is_object();
}

bool AreRunJsonFiles(const Json& value) {
  return value.is_null() || ParseFileList(value).ok();
}

bool IsRunJsonPart(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_object() || !value.contains("number") || !value.contains("of")) return false;
  return IsIntegerIn(value["of"], 2, kMostParts) &&
         IsIntegerIn(value["number"], 0, value["of"].get<int64_t>() - 1);
}

// A field that is missing is checked as null.
constexpr JsonField kRunJsonFields[] = {
    {"state", IsRunJsonState, "\"creating\", \"ready\" or \"unkept\""},
    {"stores", AreRunJsonStores, "a list of 1 to 64 folders"},
    {"store_uuid", IsHexDigest, "a text of 32 hexadecimal digits"},
    {"model", IsRunJsonPath, "the path of a folder"},
    {"fingerprint", IsRunJsonFingerprint, "an object, or null"},
    {"files", AreRunJsonFiles, "a list of {name, bytes, xxh3_128}, or null"},
    {"part", IsRunJsonPart, "{number, of}, of 2 parts or more, or null"},
};

// `is_another_format`: the file is as another version of forebay wrote it, which no copy changes.
absl::StatusOr<Json> ReadOneRunJson(const std::string& path, bool& is_another_format) {
  FOREBAY_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path, kMaxRunJsonBytes));
  if (!json.is_object() || !json.contains("format") || !json["format"].is_number_integer()) {
    return CorruptError(fmt::format(
        "'{}' is damaged: 'format' is {}, and {} was expected", path,
        json.is_object() ? json.value("format", Json()).dump() : "not there", kRunFormat));
  }
  if (json["format"] != kRunFormat) {
    is_another_format = true;
    return CorruptError(fmt::format(
        "'{}' has format {}; this program reads format {}. Finish the run with the forebay that "
        "began it, or begin a new one from its model",
        path, json["format"].dump(), kRunFormat));
  }
  for (const JsonField& field : kRunJsonFields) {
    const Json value = json.contains(field.name) ? json[field.name] : Json();
    if (field.is_valid(value)) continue;
    return CorruptError(fmt::format("'{}' is damaged: '{}' is {}, and {} was expected", path,
                                    field.name, value.dump(), field.expected));
  }
  return json;
}

}  // namespace

bool IsHexDigest(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool IsRunFolder(const std::string& directory) {
  const RunPaths paths(directory);
  if (FileExists(paths.run_json)) return true;
  // A run whose own folder is called "files" has a lock there.
  return FileExists(paths.run_json_copy) && !FileExists(RunPaths(paths.files).lock);
}

absl::StatusOr<Json> ReadRunJsonAt(const std::string& path) {
  bool is_another_format = false;
  return ReadOneRunJson(path, is_another_format);
}

absl::StatusOr<Json> ReadRunJson(const std::string& run_directory, std::string* note) {
  const RunPaths paths(run_directory);
  if (!IsRunFolder(run_directory)) {
    return BadInputError(
        fmt::format("'{}' is not a run folder of forebay (it has no run.json)", run_directory));
  }
  bool is_another_format = false;
  absl::StatusOr<Json> json = ReadOneRunJson(paths.run_json, is_another_format);
  if (json.ok() || is_another_format) return json;
  absl::StatusOr<Json> copy = ReadRunJsonAt(paths.run_json_copy);
  if (copy.ok()) {
    if (note != nullptr) *note = NoteOfCopy(json.status(), paths.run_json_copy);
    return copy;
  }
  if (ExitCodeOf(json.status()) == ExitCode::kStorage) return json;
  return CorruptError(fmt::format(
      "{}. Put back a copy of it; there is none in '{}'. What the run trained is in '{}' and its "
      "swap area, untouched; where nothing of it is needed remove the folders",
      MessageOf(json.status()), paths.files, run_directory));
}

absl::Status WriteRunJson(const RunPaths& paths, const Json& json) {
  FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(paths.files));
  for (const std::string& path : {paths.run_json_copy, paths.run_json}) {
    // A copy that is as it should be is left alone: the disk may be full.
    if (const absl::StatusOr<Json> there = ReadRunJsonAt(path); there.ok() && *there == json) {
      continue;
    }
    FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(path, json.dump(2) + "\n"));
  }
  return absl::OkStatus();
}

std::string NoteOfCopy(const absl::Status& why, const std::string& copy) {
  return fmt::format(
      "{}. Its copy '{}' is used; 'forebay inspect RUN --repair' writes the file anew",
      MessageOf(why), copy);
}

std::string ModelOf(const std::string& run_directory, const Json& json) {
  const auto& path = json["model"].get_ref<const std::string&>();
  return path.starts_with('/') ? path : JoinPath(run_directory, path);
}

std::string StoreUuidOf(const Json& json) {
  return json["store_uuid"].get<std::string>();
}

}  // namespace forebay
