#include "forebay/train/files/export_files.h"

#include <limits>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::vector<ExportedFile>> ParseFileList(const Json& list) {
  if (!list.is_array()) return BadInputError("has no list of files");
  std::vector<ExportedFile> files;
  int64_t all_bytes = 0;
  for (const Json& entry : list) {
    const bool is_whole = entry.is_object() && entry.contains("name") && entry.contains("bytes") &&
                          entry.contains("xxh3_128") && entry["name"].is_string() &&
                          entry["bytes"].is_number_unsigned() && entry["xxh3_128"].is_string();
    if (!is_whole) return BadInputError("has an entry without name, bytes or xxh3_128");
    const auto bytes = entry["bytes"].get<uint64_t>();
    if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() - all_bytes)) {
      return BadInputError(fmt::format("has files of {} bytes and more", bytes));
    }
    all_bytes += static_cast<int64_t>(bytes);
    const auto& name = entry["name"].get_ref<const std::string&>();
    if (name.empty() || name.front() == '.' ||
        name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return BadInputError(fmt::format("names the file '{}'", name));
    }
    files.push_back(
        {name, static_cast<int64_t>(bytes), entry["xxh3_128"].get_ref<const std::string&>()});
  }
  return files;
}

absl::StatusOr<std::vector<ExportedFile>> ParseExportFiles(std::string_view text,
                                                           const std::string& path) {
  const auto bad = [&](std::string_view what) {
    return CorruptError(
        fmt::format("'{}' {}. Copy the folder again, or export the model again", path, what));
  };
  const absl::StatusOr<Json> parsed = ParseJson(text, path);
  if (!parsed.ok()) {
    return bad(fmt::format("cannot be understood: {}", MessageOf(parsed.status())));
  }
  const Json& json = *parsed;
  if (!json.is_object() || !json.contains("format") || !json.contains("files") ||
      !json["files"].is_array()) {
    return bad("is no manifest of an export");
  }
  if (json["format"] != kExportFormat) return bad("has a format that this program does not know");
  absl::StatusOr<std::vector<ExportedFile>> files = ParseFileList(json["files"]);
  if (!files.ok()) return bad(MessageOf(files.status()));
  return files;
}

}  // namespace forebay
