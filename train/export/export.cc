#include "forebay/train/export/export.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/shared_file.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/train/export/export_manifest.h"
#include "forebay/train/export/export_weights.h"

namespace forebay {
namespace {

constexpr std::string_view kExportPrefix = "step-";
constexpr char kUnfinishedSuffix[] = ".tmp";
constexpr char kRemovedSuffix[] = ".removed.tmp";
constexpr char kWeightsFile[] = "model.safetensors";

absl::Status Rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return StorageError(fmt::format("renaming '{}' to '{}' failed", from, to), errno);
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

// Nothing that is half gone keeps the name of an export, whatever a power cut keeps.
absl::Status RemoveExport(const std::string& directory) {
  if (!FileExists(directory)) return absl::OkStatus();
  const std::string going = directory + kRemovedSuffix;
  FOREBAY_RETURN_IF_ERROR(RemoveTree(going));
  FOREBAY_RETURN_IF_ERROR(Rename(directory, going));
  FOREBAY_RETURN_IF_ERROR(SyncFolderOf(directory));
  return RemoveTree(going);
}

// `from` takes the place of `to`, in one step where the file system can: then there is no moment
// without a whole `to` when one existed. Elsewhere (NFS, some of FUSE) there is one, but none
// without a whole export under any name.
absl::Status ReplaceDirectory(const std::string& from, const std::string& to) {
  std::string replaced = from;  // where the one before goes
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    replaced = to + kRemovedSuffix;
    const bool is_there = FileExists(to);
    if (is_there) FOREBAY_RETURN_IF_ERROR(Rename(to, replaced));
    const absl::Status renamed = Rename(from, to);
    if (!renamed.ok()) {
      if (is_there) Rename(replaced, to).IgnoreError();
      return renamed;
    }
  }
  FOREBAY_RETURN_IF_ERROR(SyncFolderOf(to));
  // The new one stands. What cannot be removed now, the next export removes first.
  RemoveTree(replaced).IgnoreError();
  return absl::OkStatus();
}

// The exports of a run with their steps, oldest first.
absl::StatusOr<std::vector<std::pair<int64_t, std::string>>> ExportsIn(
    const std::string& exports_directory) {
  std::vector<std::pair<int64_t, std::string>> exports;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(exports_directory));
  for (const std::string& name : names) {
    if (!name.starts_with(kExportPrefix)) continue;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [rest, code] = std::from_chars(name.data() + kExportPrefix.size(), end, step);
    if (code == std::errc() && rest == end) {
      exports.emplace_back(step, JoinPath(exports_directory, name));
    }
  }
  std::ranges::sort(exports);
  return exports;
}

absl::Status FillFolder(const WeightsSource& source, const ExportedModel& model,
                        const std::string& folder,
                        const std::function<absl::Status(double)>& progress) {
  FOREBAY_RETURN_IF_ERROR(MakeSharedDirectories(folder));
  FOREBAY_ASSIGN_OR_RETURN(
      const std::string digest,
      WriteWeights(source, model.dtype, JoinPath(folder, kWeightsFile), progress));
  FOREBAY_RETURN_IF_ERROR(model.files.empty()
                              ? CopySidecarFiles(model.origin, folder, model.dtype)
                              : ExportRunFiles(model.origin, model.files, model.dtype, folder));
  FOREBAY_RETURN_IF_ERROR(
      WriteExportManifest(folder, {source.uuid(), source.step()}, {{kWeightsFile, digest}}));
  return SyncDirectory(folder);
}

}  // namespace

std::vector<std::string> BesideExport(const std::string& destination) {
  return {destination + kUnfinishedSuffix, destination + kRemovedSuffix};
}

absl::Status ExportModel(const WeightsSource& source, const ExportedModel& model,
                         const std::function<absl::Status(double)>& progress) {
  const std::string temporary = model.folder + kUnfinishedSuffix;
  for (const std::string& left : BesideExport(model.folder)) {
    FOREBAY_RETURN_IF_ERROR(RemoveTree(left));
  }
  const absl::Status filled = FillFolder(source, model, temporary, progress);
  if (!filled.ok()) {
    RemoveTree(temporary).IgnoreError();
    return filled;
  }
  return ReplaceDirectory(temporary, model.folder);
}

absl::StatusOr<std::optional<std::string>> NewestExport(const std::string& exports_directory) {
  FOREBAY_ASSIGN_OR_RETURN(const auto exports, ExportsIn(exports_directory));
  if (exports.empty()) return std::nullopt;
  return exports.back().second;
}

absl::Status RemoveUnfinishedExports(const std::string& exports_directory) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(exports_directory));
  for (const std::string& name : names) {
    if (!name.starts_with(kExportPrefix) || !name.ends_with(kUnfinishedSuffix)) continue;
    FOREBAY_RETURN_IF_ERROR(RemoveTree(JoinPath(exports_directory, name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PruneExports(const std::string& exports_directory, int64_t keep) {
  FOREBAY_ASSIGN_OR_RETURN(const auto exports, ExportsIn(exports_directory));
  int64_t num_removed = 0;
  for (; static_cast<int64_t>(exports.size()) - num_removed > keep; ++num_removed) {
    FOREBAY_RETURN_IF_ERROR(RemoveExport(exports[num_removed].second));
  }
  return num_removed;
}

}  // namespace forebay
