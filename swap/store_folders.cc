#include "forebay/swap/store_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/swap/commit_record.h"
#include "forebay/swap/store_lock.h"

namespace forebay {
namespace {

constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
constexpr const char* kDataNames[] = {kWeightsName, kStateName, kGradientsName,
                                      kCommitName,  kSealsName, kIntentName};

std::string ManifestPath(const std::string& directory) {
  return JoinPath(directory, kManifestName);
}

absl::Status HoldsStoreError(const std::string& directory) {
  return UsageError(
      fmt::format("'{}' already holds a store, which is not overwritten. Continue it with "
                  "--resume, remove it with 'forebay clean', or "
                  "choose another folder",
                  directory));
}

absl::Status CheckHoldsNoStore(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(const bool holds_store, ProbePath(ManifestPath(directory)));
  return holds_store ? HoldsStoreError(directory) : absl::OkStatus();
}

// `path` and the folders above it, as far as they are not there; the deepest first.
std::vector<std::string> FoldersToMake(const std::string& path) {
  std::vector<std::string> missing;
  std::filesystem::path at = path;
  if (!at.has_filename()) at = at.parent_path();  // "a/"
  for (; !at.empty(); at = at.parent_path()) {
    const absl::StatusOr<bool> is_there = ProbePath(at.string());
    if (!is_there.ok() || *is_there) break;
    missing.push_back(at.string());
  }
  return missing;
}

absl::Status TakeClaim(StoreFolder& folder) {
  const std::string& directory = folder.directory;
  FOREBAY_RETURN_IF_ERROR(CheckHoldsNoStore(directory));
  // Data files beside a lock are the rest of a creation that was killed. Without a lock they are
  // somebody else's.
  const std::string lock_path = JoinPath(directory, kLockName);
  FOREBAY_ASSIGN_OR_RETURN(const bool had_lock, ProbePath(lock_path));
  for (const char* name : kDataNames) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(JoinPath(directory, name)));
    if (is_there && !had_lock) {
      return UsageError(
          fmt::format("'{}' holds a file '{}' that no store of forebay made. Move it away or "
                      "choose another folder",
                      directory, name));
    }
  }
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd lock, TakeStoreLock(lock_path));
  // Created while this waited for the lock.
  FOREBAY_RETURN_IF_ERROR(CheckHoldsNoStore(directory));
  FOREBAY_RETURN_IF_ERROR(RemoveStoreFiles(directory).status());
  folder.lock = std::move(lock);
  return absl::OkStatus();
}

absl::Status CheckHoldsStore(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(const bool holds_store, ProbePath(ManifestPath(directory)));
  if (holds_store) return absl::OkStatus();
  return BadInputError(
      fmt::format("'{}' holds no store ({} is missing). Name the folder of a run that was "
                  "started with its state on NVMe",
                  directory, kManifestName));
}

absl::StatusOr<StoreManifest> ReadManifest(const std::string& directory) {
  FOREBAY_RETURN_IF_ERROR(CheckHoldsStore(directory));
  const std::string path = ManifestPath(directory);
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kManifestBytesMax));
  return DecodeManifest(text, path);
}

// What the manifest of every folder of one store has in common.
std::string CommonText(StoreManifest manifest) {
  manifest.stripe = 0;
  return EncodeManifest(manifest);
}

struct Found {
  StoreFolder folder;
  StoreManifest manifest;
};

absl::Status CheckOneStore(const Found& first, const Found& other) {
  if (first.manifest.uuid != other.manifest.uuid) {
    return CorruptError(fmt::format(
        "'{}' and '{}' belong to different stores ({} and {}). Name the folders of one store",
        first.folder.directory, other.folder.directory, ToHex(first.manifest.uuid),
        ToHex(other.manifest.uuid)));
  }
  if (CommonText(first.manifest) == CommonText(other.manifest)) return absl::OkStatus();
  return CorruptError(
      fmt::format("the manifests in '{}' and '{}' are of one store and contradict one another. "
                  "Put back the files that belong together",
                  first.folder.directory, other.folder.directory));
}

std::string PartText(int stripe, size_t num_stripes) {
  return fmt::format("part {} of {}", stripe + 1, num_stripes);
}

absl::Status CheckIsWanted(const StoreUuid& uuid, const std::string& wanted_uuid,
                           std::span<const std::string> directories) {
  if (wanted_uuid.empty() || ToHex(uuid) == wanted_uuid) return absl::OkStatus();
  return CorruptError(fmt::format(
      "{} {} another store: {}, where {} is looked for. Nothing was touched. Put the folders of "
      "the one that is looked for back, or name where they are now ('forebay train --resume' with "
      "--nvme, which remembers it)",
      QuotedList(directories), directories.size() == 1 ? "holds" : "hold", ToHex(uuid),
      wanted_uuid));
}

// The manifests of one whole store, by stripe, from what lies there now. Takes no lock, so that
// nothing of a store that is not the wanted one is touched.
absl::StatusOr<std::vector<Found>> FindParts(std::span<const std::string> directories,
                                             const std::string& wanted_uuid) {
  std::vector<Found> found;
  for (const std::string& directory : directories) {
    Found& next = found.emplace_back();
    next.folder.directory = directory;
    FOREBAY_ASSIGN_OR_RETURN(next.manifest, ReadManifest(directory));
    FOREBAY_RETURN_IF_ERROR(CheckOneStore(found.front(), next));
  }
  FOREBAY_RETURN_IF_ERROR(CheckIsWanted(found.front().manifest.uuid, wanted_uuid, directories));
  std::ranges::stable_sort(found, {}, [](const Found& f) { return f.manifest.stripe; });
  const size_t num_stripes = found.front().manifest.stripe_weights.size();
  for (size_t i = 0; i < num_stripes; ++i) {
    const auto expected = static_cast<int>(i);
    if (i >= found.size() || found[i].manifest.stripe > expected) {
      return BadInputError(fmt::format(
          "{} of the store is missing: {} {} not it. Mount its disk, or name the folder where it "
          "is now (--nvme)",
          PartText(expected, num_stripes), QuotedList(directories),
          directories.size() == 1 ? "is" : "are"));
    }
    if (i + 1 < found.size() && found[i + 1].manifest.stripe == expected) {
      return BadInputError(fmt::format(
          "'{}' and '{}' both are {} of one store: one is a copy of the other. Name one of them",
          found[i].folder.directory, found[i + 1].folder.directory,
          PartText(expected, num_stripes)));
    }
  }
  return found;
}

// ---- What is left of a store

// The store that owner.json names; "" where it names none.
absl::StatusOr<std::string> StoreOfOwner(const std::string& directory) {
  const absl::StatusOr<Json> owner =
      ReadJsonFile(JoinPath(directory, kOwnerName), kMaxConfigFileBytes);
  if (ExitCodeOf(owner.status()) == ExitCode::kStorage) return owner.status();
  const bool names_one = owner.ok() && owner->is_object() && owner->contains(kOwnersStoreKey) &&
                         (*owner)[kOwnersStoreKey].is_string();
  return names_one ? (*owner)[kOwnersStoreKey].get<std::string>() : "";
}

// The store whose part lies in a folder, as its manifest says, or where that cannot be read its
// record or its owner: damage, and a creation or removal that was killed, leave one of them. ""
// when none says.
absl::StatusOr<std::string> StoreIn(const std::string& directory) {
  const absl::StatusOr<StripeIdentity> identity = ReadStripeIdentity(directory);
  if (identity.ok()) return ToHex(identity->uuid);
  if (ExitCodeOf(identity.status()) == ExitCode::kStorage) return identity.status();
  const std::string path = JoinPath(directory, kCommitName);
  const absl::StatusOr<std::string> text = ReadWholeFile(path, 2 * kCommitRecordBytes);
  if (ExitCodeOf(text.status()) == ExitCode::kStorage) return text.status();
  const auto bytes = text.ok() ? std::as_bytes(std::span(*text)) : std::span<const std::byte>();
  constexpr size_t kRecordBytes = kCommitRecordBytes;
  for (size_t at = 0; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    const absl::StatusOr<DecodedCopy> copy =
        DecodeCommitRecord(bytes.subspan(at, kRecordBytes), path);
    if (copy.ok() && copy->state == CopyState::kGood) return ToHex(copy->record.uuid);
  }
  return StoreOfOwner(directory);
}

// Others have files of these names too: a lock and a manifest that says nothing to us, without any
// data of ours, are theirs.
absl::Status CheckManifestIsOurs(const std::string& directory) {
  for (const char* name : kDataNames) {
    if (FileExists(JoinPath(directory, name))) return absl::OkStatus();
  }
  FOREBAY_ASSIGN_OR_RETURN(const bool has_manifest, ProbePath(ManifestPath(directory)));
  FOREBAY_ASSIGN_OR_RETURN(const std::string found, StoreIn(directory));
  if (!has_manifest || !found.empty()) return absl::OkStatus();
  return BadInputError(
      fmt::format("'{}' holds no store of forebay: its '{}' is another program's, and nothing of it "
                  "was removed",
                  directory, kManifestName));
}

// One that is not there is as good as removed.
absl::Status RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return StorageError(fmt::format("removing '{}' failed, and what is beside it stays", path),
                      errno);
}

enum class PartState { kNotThere, kOurs, kOfOthers };

// What a folder holds of the store `uuid`. What does not say whose it is was made by somebody else:
// 'lock' and 'manifest.json' are names that others give to their files too.
absl::StatusOr<PartState> LookForPart(const std::string& directory, const std::string& uuid) {
  FOREBAY_ASSIGN_OR_RETURN(const bool has_lock, ProbePath(JoinPath(directory, kLockName)));
  FOREBAY_ASSIGN_OR_RETURN(const bool has_files, HoldsStoreFiles(directory));
  if (!has_lock && !has_files) return PartState::kNotThere;
  FOREBAY_ASSIGN_OR_RETURN(const std::string found, StoreIn(directory));
  return !found.empty() && found == uuid ? PartState::kOurs : PartState::kOfOthers;
}

// By whoever holds the lock, which stays with what could not be removed. Bytes that were freed.
absl::StatusOr<int64_t> RemovePart(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(const int64_t freed_bytes, RemoveStoreFiles(directory));
  RemoveLock(directory);
  // Fails where something else is in the folder, which then stays.
  ::rmdir(directory.c_str());
  return freed_bytes;
}

}  // namespace

std::string QuotedList(std::span<const std::string> directories) {
  std::string list;
  for (const std::string& directory : directories) {
    list += fmt::format("{}'{}'", list.empty() ? "" : ", ", directory);
  }
  return list;
}

absl::Status RefuseSameFolder(std::span<const std::string> directories) {
  std::vector<std::optional<struct stat>> places;
  for (const std::string& directory : directories) {
    struct stat info = {};
    places.push_back(::stat(directory.c_str(), &info) == 0 ? std::optional(info) : std::nullopt);
    for (size_t i = 0; i + 1 < places.size(); ++i) {
      const bool same_place = places[i].has_value() && places.back().has_value() &&
                              places[i]->st_dev == info.st_dev && places[i]->st_ino == info.st_ino;
      if (same_place || directories[i] == directory) {
        return UsageError(
            fmt::format("'{}' and '{}' are the same folder; a store needs each of its folders once",
                        directories[i], directory));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFreeSpace(std::span<const std::string> directories,
                            std::span<const int64_t> needed_bytes, const std::string& what,
                            const std::string& fix) {
  struct FileSystem {
    dev_t device = 0;
    int64_t needed_bytes = 0;
    std::vector<std::string> directories;
  };
  std::vector<FileSystem> systems;
  for (size_t i = 0; i < directories.size(); ++i) {
    struct stat info = {};
    if (::stat(directories[i].c_str(), &info) != 0) {
      return StorageError(fmt::format("stat of '{}' failed", directories[i]), errno);
    }
    auto system = std::ranges::find(systems, info.st_dev, &FileSystem::device);
    if (system == systems.end()) system = systems.insert(systems.end(), {info.st_dev, 0, {}});
    system->needed_bytes += needed_bytes[i];
    system->directories.push_back(directories[i]);
  }
  for (const FileSystem& system : systems) {
    FOREBAY_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeSpace(system.directories.front()));
    const int64_t missing_bytes = system.needed_bytes - free_bytes;
    if (missing_bytes <= 0) continue;
    return DoesNotFitError(fmt::format(
        "{} {} ({} bytes) in {}{}, but {} ({} bytes) are free there. Free {}, or {}", what,
        FormatBytes(system.needed_bytes), system.needed_bytes, QuotedList(system.directories),
        system.directories.size() > 1 ? " together, which are on one file system" : "",
        FormatBytes(free_bytes), free_bytes, FormatBytes(missing_bytes), fix));
  }
  return absl::OkStatus();
}

absl::StatusOr<StripeIdentity> ReadStripeIdentity(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadManifest(directory));
  return StripeIdentity{manifest.uuid, manifest.stripe,
                        static_cast<int>(manifest.stripe_weights.size())};
}

absl::StatusOr<std::vector<StoreFolder>> ClaimFolders(std::span<const std::string> directories) {
  std::vector<StoreFolder> folders;
  absl::Status status;
  for (const std::string& directory : directories) {
    StoreFolder& folder = folders.emplace_back();
    folder.directory = directory;
    folder.made = FoldersToMake(directory);
    status = MakeDirectories(directory);
    if (!status.ok()) break;
  }
  if (status.ok()) status = RefuseSameFolder(directories);
  for (StoreFolder& folder : folders) {
    if (status.ok()) status = TakeClaim(folder);
  }
  if (status.ok()) return folders;
  std::ranges::reverse(folders);  // one may have been made on the way to another
  for (const StoreFolder& folder : folders) {
    if (folder.lock.valid()) RemoveLock(folder.directory);
    RemoveMade(folder.made);
  }
  return status;
}

void RemoveMade(std::span<const std::string> made) {
  for (const std::string& directory : made) ::rmdir(directory.c_str());
}

absl::StatusOr<OpenedFolders> OpenFolders(std::span<const std::string> directories,
                                          const std::string& uuid) {
  FOREBAY_RETURN_IF_ERROR(RefuseSameFolder(directories));
  FOREBAY_ASSIGN_OR_RETURN(std::vector<Found> found, FindParts(directories, uuid));
  OpenedFolders opened;
  for (Found& part : found) {
    const std::string& directory = part.folder.directory;
    FOREBAY_ASSIGN_OR_RETURN(part.folder.lock, TakeStoreLock(JoinPath(directory, kLockName)));
    // A manifest never changes, but another store may have come into the folder meanwhile.
    FOREBAY_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadManifest(directory));
    if (EncodeManifest(manifest) != EncodeManifest(part.manifest)) {
      return EnvironmentError(fmt::format(
          "the store in '{}' was replaced by another while it was opened. Try again", directory));
    }
    opened.folders.push_back(std::move(part.folder));
  }
  opened.manifest = std::move(found.front().manifest);
  return opened;
}

absl::StatusOr<bool> HoldsStoreFiles(const std::string& directory) {
  std::vector<const char*> names(std::begin(kDataNames), std::end(kDataNames));
  names.insert(names.end(), {kManifestName, kOwnerName});
  for (const char* name : names) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(JoinPath(directory, name)));
    if (is_there) return true;
  }
  return false;
}

absl::StatusOr<int64_t> RemoveStoreFiles(const std::string& directory) {
  int64_t freed_bytes = 0;
  FOREBAY_RETURN_IF_ERROR(RemoveFile(ManifestPath(directory)));
  for (const char* name : kDataNames) {
    const std::string path = JoinPath(directory, name);
    const int64_t size_bytes = FileSize(path).value_or(0);
    FOREBAY_RETURN_IF_ERROR(RemoveFile(path));
    freed_bytes += size_bytes;
  }
  // Last: until then it says whose the rest is.
  FOREBAY_RETURN_IF_ERROR(RemoveFile(JoinPath(directory, kOwnerName)));
  return freed_bytes;
}

void RemoveLock(const std::string& directory) {
  ::unlink(JoinPath(directory, kLockName).c_str());
}

absl::StatusOr<int64_t> RemoveFolders(std::span<const std::string> directories) {
  FOREBAY_RETURN_IF_ERROR(RefuseSameFolder(directories));
  std::vector<UniqueFd> locks;
  for (const std::string& directory : directories) {
    const std::string lock_path = JoinPath(directory, kLockName);
    FOREBAY_ASSIGN_OR_RETURN(const bool has_lock, ProbePath(lock_path));
    if (!has_lock) {
      return BadInputError(fmt::format(
          "'{}' holds no store of forebay ('{}' is missing), so nothing of it was removed",
          directory, kLockName));
    }
    FOREBAY_RETURN_IF_ERROR(CheckManifestIsOurs(directory));
    FOREBAY_ASSIGN_OR_RETURN(locks.emplace_back(), TakeStoreLock(lock_path));
  }
  int64_t freed_bytes = 0;
  for (const std::string& directory : directories) {
    FOREBAY_ASSIGN_OR_RETURN(const int64_t part_bytes, RemovePart(directory));
    freed_bytes += part_bytes;
  }
  return freed_bytes;
}

absl::StatusOr<RemovedParts> RemoveParts(std::span<const std::string> directories,
                                         const std::string& uuid) {
  FOREBAY_RETURN_IF_ERROR(RefuseSameFolder(directories));
  RemovedParts removed;
  std::vector<StoreFolder> ours;
  for (const std::string& directory : directories) {
    FOREBAY_ASSIGN_OR_RETURN(PartState state, LookForPart(directory, uuid));
    UniqueFd lock;
    if (state == PartState::kOurs) {
      FOREBAY_ASSIGN_OR_RETURN(lock, TakeStoreLock(JoinPath(directory, kLockName)));
      // Another store may have come into the folder while this waited for the lock.
      FOREBAY_ASSIGN_OR_RETURN(state, LookForPart(directory, uuid));
    }
    if (state == PartState::kNotThere) removed.not_there.push_back(directory);
    if (state == PartState::kOfOthers) removed.of_others.push_back(directory);
    if (state == PartState::kOurs) ours.push_back({directory, std::move(lock), {}});
  }
  for (const StoreFolder& part : ours) {
    FOREBAY_ASSIGN_OR_RETURN(const int64_t part_bytes, RemovePart(part.directory));
    removed.freed_bytes += part_bytes;
  }
  return removed;
}

}  // namespace forebay
