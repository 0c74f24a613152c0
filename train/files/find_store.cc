// Of run_folder.h: where the folders of a run's store are, also after they were moved.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

// What a store made for a run may be called in a folder that the user names: that folder itself, or
// one in it.
absl::StatusOr<std::vector<std::string>> CandidatesIn(const std::string& folder) {
  std::vector<std::string> candidates = {folder, JoinPath(folder, "swap")};
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) return Annotate(names.status(), "--nvme");
  for (const std::string& name : *names) {
    if (name.starts_with("forebay-")) candidates.push_back(JoinPath(folder, name));
  }
  std::ranges::sort(candidates);
  return candidates;
}

// Whether something is there whose contents nobody knows.
bool IsUnreadable(const absl::Status& status) {
  return ExitCodeOf(status) == ExitCode::kStorage || ExitCodeOf(status) == ExitCode::kCorrupt;
}

// The folders of one store that were found, by stripe; "" where it was not.
class Search {
 public:
  Search(std::string uuid, std::vector<std::string> recorded)
      : uuid_(std::move(uuid)), recorded_(std::move(recorded)), found_(recorded_.size()) {}

  // Whether `directory` is one of the store's.
  absl::StatusOr<bool> Look(const std::string& directory) {
    const absl::StatusOr<StripeIdentity> identity = ReadStripeIdentity(directory);
    // It may be another store's, which is no matter of this run's unless one of its parts is
    // missing.
    if (IsUnreadable(identity.status())) damage_.Update(identity.status());
    if (!identity.ok() || ToHex(identity->uuid) != uuid_) return false;
    if (identity->num_stripes != static_cast<int>(found_.size())) {
      return CorruptError(fmt::format(
          "the store has {} folders as '{}' says, and {} as run.json says. Put back the files "
          "that belong together",
          identity->num_stripes, directory, found_.size()));
    }
    std::string& place = found_[identity->stripe];
    std::error_code error;
    if (!place.empty() && !std::filesystem::equivalent(place, directory, error)) {
      return BadInputError(fmt::format(
          "'{}' and '{}' both are part {} of {} of the run's swap area: one is a copy of the "
          "other. Name one of them",
          place, directory, identity->stripe + 1, found_.size()));
    }
    place = directory;
    return true;
  }

  // Of what was looked at since the last call: the first that cannot be read.
  absl::Status TakeDamage() {
    all_damage_.Update(damage_);
    return std::exchange(damage_, absl::OkStatus());
  }

  // Those that were not found yet, where they were.
  absl::StatusOr<std::vector<std::string>> Finish(const std::vector<std::string>& folders) {
    for (size_t stripe = 0; stripe < found_.size(); ++stripe) {
      if (!found_[stripe].empty()) continue;
      const absl::StatusOr<StripeIdentity> identity = ReadStripeIdentity(recorded_[stripe]);
      if (IsUnreadable(identity.status())) return identity.status();
      if (!identity.ok() || ToHex(identity->uuid) != uuid_ ||
          identity->stripe != static_cast<int>(stripe)) {
        const std::string missing = fmt::format(
            "part {} of {} of the run's swap area is missing: it was at '{}', and is neither there "
            "nor in '{}'",
            stripe + 1, found_.size(), recorded_[stripe], fmt::join(folders, "', '"));
        if (!all_damage_.ok()) {
          return Annotate(all_damage_, missing + ", unless it is this, which cannot be read");
        }
        return BadInputError(missing +
                             ". Name the folder where it is in --nvme, or mount its disk");
      }
      found_[stripe] = recorded_[stripe];
    }
    return found_;
  }

 private:
  const std::string uuid_;
  const std::vector<std::string> recorded_;
  std::vector<std::string> found_;
  absl::Status damage_;
  absl::Status all_damage_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> StoreDirectoriesOf(const std::string& run_directory) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(run_directory));
  return StoreDirectoriesOf(run_directory, json);
}

std::vector<std::string> StoreDirectoriesOf(const std::string& run_directory, const Json& json) {
  std::vector<std::string> directories;
  for (const Json& store : json["stores"]) {
    const auto path = store.get<std::string>();
    directories.push_back(path.starts_with('/') ? path : JoinPath(run_directory, path));
  }
  return directories;
}

absl::StatusOr<std::vector<std::string>> FindStoreDirectories(
    const std::string& run_directory, const std::vector<std::string>& folders) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(run_directory));
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> recorded, StoreDirectoriesOf(run_directory));
  const std::string uuid = StoreUuidOf(json);
  Search search(uuid, recorded);
  for (const std::string& folder : folders) {
    bool any = false;
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> candidates, CandidatesIn(folder));
    for (const std::string& candidate : candidates) {
      FOREBAY_ASSIGN_OR_RETURN(const bool is_ours, search.Look(candidate));
      any = any || is_ours;
    }
    const absl::Status damage = search.TakeDamage();
    if (any) continue;
    FOREBAY_RETURN_IF_ERROR(damage);
    return BadInputError(fmt::format(
        "--nvme '{}' holds no part of the swap area of run '{}' (the store {}); its parts were "
        "last at '{}'. Name the folders where they are now, or leave --nvme out",
        folder, run_directory, uuid, fmt::join(recorded, "', '")));
  }
  return search.Finish(folders);
}

}  // namespace forebay
