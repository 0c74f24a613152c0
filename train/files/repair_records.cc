#include "forebay/train/files/repair_records.h"

#include <optional>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_settings.h"

namespace forebay {
namespace {

bool FindsItsStore(const std::string& run_directory, const Json& json) {
  for (const std::string& directory : StoreDirectoriesOf(run_directory, json)) {
    const absl::StatusOr<StripeIdentity> identity = ReadStripeIdentity(directory);
    if (identity.ok() && ToHex(identity->uuid) == StoreUuidOf(json)) return true;
  }
  return false;
}

// Each of the two files that is not as `json`.
absl::Status RepairRunJson(const RunPaths& paths, const Json& json,
                           std::vector<std::string>& written) {
  const std::vector<std::string> before = written;
  for (const std::string& path : {paths.run_json, paths.run_json_copy}) {
    const absl::StatusOr<Json> there = ReadRunJsonAt(path);
    if (!there.ok() || *there != json) written.push_back(path);
  }
  return written == before ? absl::OkStatus() : WriteRunJson(paths, json);
}

// One of the two files from the other. Where both are lost, --resume says what it does without
// them.
absl::Status RepairSettings(const RunPaths& paths, std::vector<std::string>& written) {
  const absl::StatusOr<Json> settings = ReadSettingsFile(paths.resolved_config);
  const absl::StatusOr<Json> copy = ReadSettingsFile(paths.resolved_config_copy);
  if (settings.ok() == copy.ok()) return absl::OkStatus();
  const std::string& lost = settings.ok() ? paths.resolved_config_copy : paths.resolved_config;
  const Json& whole = settings.ok() ? *settings : *copy;
  FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(lost, whole.dump(2) + "\n"));
  written.push_back(lost);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> FindRunJson(const std::string& run_directory) {
  FOREBAY_ASSIGN_OR_RETURN(Json json, ReadRunJson(run_directory));
  if (FindsItsStore(run_directory, json)) return json;
  absl::StatusOr<Json> copy = ReadRunJsonAt(RunPaths(run_directory).run_json_copy);
  return copy.ok() && FindsItsStore(run_directory, *copy) ? *std::move(copy) : std::move(json);
}

absl::StatusOr<RestoredFiles> RepairRecords(const std::string& run_directory,
                                            const CommitInfo& committed) {
  const RunPaths paths(run_directory);
  FOREBAY_ASSIGN_OR_RETURN(Json json, FindRunJson(run_directory));
  const absl::Status is_of_commit = CheckIsOfCommit(json, paths.run_json, committed);
  if (!is_of_commit.ok()) {
    absl::StatusOr<Json> copy = ReadRunJsonAt(paths.run_json_copy);
    const bool is_the_one =
        copy.ok() && CheckIsOfCommit(*copy, paths.run_json_copy, committed).ok();
    if (!is_the_one) return is_of_commit;
    json = *std::move(copy);
  }
  std::vector<std::string> written;
  FOREBAY_RETURN_IF_ERROR(RepairRunJson(paths, json, written));
  FOREBAY_RETURN_IF_ERROR(RepairSettings(paths, written));
  FOREBAY_ASSIGN_OR_RETURN(RestoredFiles restored, RestoreRunFiles(paths.files, RunFilesOf(json),
                                                                   ModelOf(run_directory, json)));
  restored.written.insert(restored.written.begin(), written.begin(), written.end());
  return restored;
}

}  // namespace forebay
