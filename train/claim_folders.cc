#include "forebay/train/claim_folders.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/base/output_folder.h"
#include "forebay/swap/store_folders.h"
#include "forebay/train/run_folder.h"
#include "forebay/train/swap_area.h"

namespace forebay {
namespace {

// The store of a start in --out that never reached its first commit, whose remains may be replaced;
// no folder when there is none. UsageError when --out holds a whole run.
absl::StatusOr<std::vector<std::string>> StoreOfUnfinishedStart(const std::string& out) {
  if (!IsRunFolder(out)) return std::vector<std::string>();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(out));
  if (json["state"] == "creating") return StoreDirectoriesOf(out);
  return UsageError(fmt::format(
      "--out '{}' holds another run. Continue it with --resume, or choose another folder", out));
}

absl::Status CheckOutIsEmpty(const std::string& out) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(out));
  for (const std::string& name : names) {
    // A start that was killed while it wrote its first file leaves this behind.
    if (name == "run.json.tmp") continue;
    return UsageError(fmt::format(
        "--out '{}' is not empty. Choose a new or empty folder; nothing was changed", out));
  }
  return absl::OkStatus();
}

absl::Status CheckStoreFolderIsFree(const std::string& store) {
  std::error_code error;
  const bool is_link = std::filesystem::is_symlink(store, error);
  if (!is_link) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(store));
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(store));
    if (!is_there || (IsDirectory(store) && names.empty())) return absl::OkStatus();
  }
  return UsageError(fmt::format(
      "the swap area of this run would be '{}', which holds something already: perhaps that of a "
      "run with the same --out, whose folder was removed since. Remove it if nothing of it is "
      "needed, or choose another --out or --nvme",
      store));
}

}  // namespace

absl::Status CheckFoldersAreFree(const TrainOptions& options) {
  const std::string& out = options.out;
  const std::vector<std::string> stores = NewStoreDirectories(options);
  if (FileExists(out) && !IsDirectory(out))
    return UsageError(fmt::format("--out '{}' is not a folder", out));
  FOREBAY_RETURN_IF_ERROR(Annotate(CheckWritable(out), "--out"));
  for (const std::string& store : stores) {
    FOREBAY_RETURN_IF_ERROR(
        Annotate(CheckWritable(store), options.nvme.empty() ? "--out" : "--nvme"));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> unfinished, StoreOfUnfinishedStart(out));
  if (unfinished.empty()) FOREBAY_RETURN_IF_ERROR(CheckOutIsEmpty(out));
  for (const std::string& store : stores) {
    std::error_code error;
    const bool is_ours = std::ranges::count(unfinished, CanonicalPath(store), CanonicalPath) > 0;
    if (is_ours && !std::filesystem::is_symlink(store, error)) continue;
    FOREBAY_RETURN_IF_ERROR(CheckStoreFolderIsFree(store));
  }
  return absl::OkStatus();
}

absl::Status ClaimFolders(const TrainOptions& options) {
  const std::string& out = options.out;
  FOREBAY_RETURN_IF_ERROR(CheckFoldersAreFree(options));
  FOREBAY_RETURN_IF_ERROR(MakeDirectories(out));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> unfinished, StoreOfUnfinishedStart(out));
  if (unfinished.empty()) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(out));
  return RemoveParts(unfinished, StoreUuidOf(json)).status();
}

}  // namespace forebay
