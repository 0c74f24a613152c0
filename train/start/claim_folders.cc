#include "forebay/train/start/claim_folders.h"
#include "forebay/train/files/rank_folder.h"

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
#include "forebay/base/shared_file.h"
#include "forebay/swap/store/store_state.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_lock.h"
#include "forebay/train/files/store_owner.h"
#include "forebay/train/files/swap_area.h"

namespace forebay {
namespace {

// The store of a start in --out that never reached its first commit, whose remains may be replaced;
// no folder when there is none. UsageError when --out holds a whole run.
absl::StatusOr<std::vector<std::string>> StoreOfUnfinishedStart(const std::string& out) {
  if (!IsRunFolder(out)) return std::vector<std::string>();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(out));
  if (json["state"] == kRunCreating) return StoreDirectoriesOf(out);
  return UsageError(fmt::format(
      "--out '{}' holds another run. Continue it with --resume, or choose another folder", out));
}

// Whether `path` is OUT/files with nothing in it but a record that was never finished.
bool IsLeftOfRecords(const std::string& path) {
  if (std::filesystem::path(path).filename() != "files" || !IsDirectory(path)) return false;
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(path);
  return names.ok() && std::ranges::all_of(
                           *names, [](const std::string& name) { return name == "run.json.tmp"; });
}

absl::Status CheckOutIsEmpty(const std::string& out) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(out));
  for (const std::string& name : names) {
    // A start that was killed while it wrote its first files leaves these behind.
    const std::string path = JoinPath(out, name);
    if (name == "run.json.tmp" || IsLeftOfRecords(path)) continue;
    // Another rank of this start, which looks at its own folder.
    if (IsNameOfRank(name)) continue;
    if (path == RunPaths(out).lock) {
      FOREBAY_ASSIGN_OR_RETURN(const bool is_lock, LooksLikeARunLock(path));
      if (is_lock) continue;
    }
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

absl::Status LookAtFolders(const TrainOptions& options) {
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

// Refuses a folder of others whose files a creation would take for the rest of an unfinished one.
absl::Status CheckIsNoRestOfOthers(const std::string& store) {
  FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(store));
  // A creation refuses a store.
  if (found.file.empty() || HasCommit(found.state)) return absl::OkStatus();
  return UsageError(fmt::format(
      "the swap area of this run would be '{}', and nothing says that the files there "
      "are of its unfinished start. Remove them if nothing of them is needed, or choose "
      "another --out or --nvme",
      store));
}

// run.json says that the run in `out` was never begun, so its store carries the mark of a creation.
// One that does not has been trained, and run.json is not of that time.
absl::Status CheckIsUnfinished(const std::string& out, const std::string& uuid,
                               const std::vector<std::string>& stores) {
  for (const std::string& store : stores) {
    FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(store));
    if (found.state != StoreState::kThere) continue;
    if (FindOwner(store, out, uuid).ownership != Ownership::kOurs) continue;
    return UsageError(fmt::format(
        "'{}' holds a store of the run in '{}' whose creation ended, though run.json says that the "
        "run was never begun. Nothing was changed. Put back the run.json of that time, remove the "
        "run with 'forebay clean' if nothing of it is needed, or choose another --out",
        store, out));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFoldersAreFree(const TrainOptions& options) {
  FOREBAY_RETURN_IF_ERROR(CheckRunIsNotInUse(options.out));
  const absl::Status found = LookAtFolders(options);
  // Whoever began in between has left the folders half made.
  if (!found.ok()) FOREBAY_RETURN_IF_ERROR(CheckRunIsNotInUse(options.out));
  return found;
}

absl::StatusOr<UniqueFd> ClaimFolders(const TrainOptions& options, std::string* note) {
  const std::string& out = options.out;
  FOREBAY_RETURN_IF_ERROR(CheckFoldersAreFree(options));
  FOREBAY_RETURN_IF_ERROR(MakeSharedDirectories(out));
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd lock, TakeRunLock(out, note));
  // Another start may have come first, and may even have ended.
  FOREBAY_RETURN_IF_ERROR(LookAtFolders(options));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> unfinished, StoreOfUnfinishedStart(out));
  if (unfinished.empty()) return lock;
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(out));
  FOREBAY_RETURN_IF_ERROR(CheckIsUnfinished(out, StoreUuidOf(json), unfinished));
  FOREBAY_RETURN_IF_ERROR(RemoveOwnParts(out, StoreUuidOf(json), unfinished).status());
  for (const std::string& store : NewStoreDirectories(options)) {
    FOREBAY_RETURN_IF_ERROR(CheckIsNoRestOfOthers(store));
  }
  return lock;
}

}  // namespace forebay
