#include "forebay/swap/store/store_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/store_lock.h"
#include "forebay/swap/store/store_state.h"

namespace forebay {
namespace {

constexpr int64_t kManifestBytesMax = int64_t{64} << 20;

// `found`: what lies there.
absl::Status HoldsStoreError(const std::string& directory, const FolderState& found) {
  return UsageError(
      fmt::format("'{}' already holds a store ('{}' is there), which is not overwritten. Continue "
                  "it with --resume, remove it with 'forebay clean', or choose another folder",
                  directory, found.file));
}

absl::StatusOr<bool> HasManifest(const std::string& directory) {
  bool has = false;
  for (const char* name : kManifestNames) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(JoinPath(directory, name)));
    has = has || is_there;
  }
  return has;
}

// The state of a folder that a store may be made in.
absl::StatusOr<StoreState> CheckHoldsNoStore(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(directory));
  if (HasCommit(found.state)) return HoldsStoreError(directory, found);
  return found.state;
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
  // Before a lock is made in a folder of others.
  FOREBAY_RETURN_IF_ERROR(CheckHoldsNoStore(directory).status());
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd lock, TakeStoreLock(JoinPath(directory, kLockName)));
  // A store may have been made while this waited for the lock.
  FOREBAY_ASSIGN_OR_RETURN(const StoreState state, CheckHoldsNoStore(directory));
  if (state == StoreState::kHalfMade) {
    FOREBAY_RETURN_IF_ERROR(RemoveStoreFiles(directory).status());
  }
  folder.lock = std::move(lock);
  return MarkCreating(directory);
}

// No folder may hide what is looked for: it is named before anything is changed.
absl::Status CheckIsNoFolder(const std::string& directory, const char* name) {
  const std::string path = JoinPath(directory, name);
  if (!IsDirectory(path)) return absl::OkStatus();
  return StorageError(fmt::format(
      "'{}' is a folder, and a file of the store has that name. Nothing was changed. Put back the "
      "file that belongs there, or remove the folder",
      path));
}

absl::Status CheckHoldsStore(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(const bool holds_store, HasManifest(directory));
  if (holds_store) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(directory));
  if (found.state == StoreState::kThere) {
    return CorruptError(fmt::format(
        "'{}' holds '{}' of a store, but neither of its manifests ('{}', '{}') can be found. "
        "Nothing was changed. Put back one of them, or restore the store from a copy",
        directory, found.file, kManifestNames[0], kManifestNames[1]));
  }
  return BadInputError(
      fmt::format("'{}' holds no store ({} is missing). Name the folder of a run that was "
                  "started with its state on NVMe",
                  directory, kManifestName));
}

// The good records of a folder, the newest first.
std::vector<CommitRecord> RecordsIn(const std::string& directory) {
  std::vector<CommitRecord> records;
  for (const char* name : kCommitNames) {
    const std::string path = JoinPath(directory, name);
    std::vector<std::byte> bytes(static_cast<size_t>(kCommitRecordBytes));
    const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY | O_NOFOLLOW);
    if (!fd.ok() || !PreadAll(fd->get(), bytes, 0, path).ok()) continue;
    const absl::StatusOr<DecodedCopy> copy = DecodeCommitRecord(bytes, path);
    if (copy.ok() && copy->state == CopyState::kGood) records.push_back(copy->record);
  }
  std::ranges::stable_sort(records, std::ranges::greater(), &CommitRecord::sequence);
  return records;
}

// The manifest of a folder, and the copies of it that cannot be used.
struct FoundManifest {
  StoreManifest manifest;
  std::vector<std::string> damaged;
};

absl::StatusOr<StoreManifest> ReadManifestAt(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kManifestBytesMax));
  return DecodeManifest(text, path);
}

// The one that is whole. Of two that are, and differ, the one that the newest record was written
// with; the error of the first where neither can be believed.
absl::StatusOr<FoundManifest> ReadManifest(const std::string& directory) {
  FOREBAY_RETURN_IF_ERROR(CheckHoldsStore(directory));
  for (const char* name : kManifestNames) {
    FOREBAY_RETURN_IF_ERROR(CheckIsNoFolder(directory, name));
  }
  std::vector<std::string> paths;
  std::vector<absl::StatusOr<StoreManifest>> read;
  for (const char* name : kManifestNames) {
    paths.push_back(JoinPath(directory, name));
    read.push_back(ReadManifestAt(paths.back()));
  }
  if (!read[0].ok() && !read[1].ok()) {
    const bool first_is_there = ExitCodeOf(read[0].status()) != ExitCode::kBadInput;
    return read[first_is_there ? 0 : 1].status();
  }
  int chosen = read[0].ok() ? 0 : 1;
  if (read[0].ok() && read[1].ok() && EncodeManifest(*read[0]) != EncodeManifest(*read[1])) {
    const std::vector<CommitRecord> records = RecordsIn(directory);
    const auto is_of_record = [&](const absl::StatusOr<StoreManifest>& manifest) {
      return !records.empty() && HashOfManifest(*manifest) == records.front().manifest_hash;
    };
    if (is_of_record(read[0]) == is_of_record(read[1])) {
      return CorruptError(fmt::format(
          "the manifests '{}' and '{}' contradict one another, and no commit record says which is "
          "this folder's. Put back the files that belong together",
          paths[0], paths[1]));
    }
    chosen = is_of_record(read[0]) ? 0 : 1;
  }
  FoundManifest found = {*read[chosen], {}};
  const std::string text = EncodeManifest(found.manifest);
  for (int copy = 0; copy < kNumCopies; ++copy) {
    if (!read[copy].ok() || EncodeManifest(*read[copy]) != text) {
      found.damaged.push_back(paths[copy]);
    }
  }
  return found;
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
  if (HashOfManifest(first.manifest) == HashOfManifest(other.manifest)) return absl::OkStatus();
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
    FOREBAY_ASSIGN_OR_RETURN(FoundManifest read, ReadManifest(directory));
    next.manifest = std::move(read.manifest);
    next.folder.damaged_manifests = std::move(read.damaged);
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

absl::StatusOr<UniqueFd> LockFor(StoreAccess access, const std::string& path) {
  switch (access) {
    case StoreAccess::kReadWrite:
      return TakeStoreLock(path);
    case StoreAccess::kReadOnly:
      return ShareStoreLock(path);
    case StoreAccess::kBesideWriter:
      return UniqueFd();
  }
  FOREBAY_CHECK(false);
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
  const std::vector<CommitRecord> records = RecordsIn(directory);
  return records.empty() ? StoreOfOwner(directory) : ToHex(records.front().uuid);
}

// Others have files of these names too: a lock and a manifest that says nothing to us, without any
// data of ours, are theirs.
absl::Status CheckManifestIsOurs(const std::string& directory) {
  for (const char* name : kStoreFileNames) {
    const bool is_generic = name == kManifestNames[0] || name == kManifestNames[1] ||
                            std::string_view(name) == kOwnerName;
    if (!is_generic && FileExists(JoinPath(directory, name))) return absl::OkStatus();
  }
  FOREBAY_ASSIGN_OR_RETURN(const bool has_manifest, HasManifest(directory));
  FOREBAY_ASSIGN_OR_RETURN(const std::string found, StoreIn(directory));
  if (!has_manifest || !found.empty()) return absl::OkStatus();
  return BadInputError(fmt::format(
      "'{}' holds no store of forebay: its '{}' is another program's, and nothing of it "
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

// Looks for parts of the store `uuid` in a folder. Files that do not say whose they are count as
// others': 'lock' and 'manifest.json' are names that others give to their files too.
absl::StatusOr<PartState> LookForPart(const std::string& directory, const std::string& uuid) {
  FOREBAY_ASSIGN_OR_RETURN(const bool has_lock, ProbePath(JoinPath(directory, kLockName)));
  FOREBAY_ASSIGN_OR_RETURN(const FolderState there, LookAtFolder(directory));
  if (!has_lock && there.file.empty()) return PartState::kNotThere;
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
      return StorageErrorWithAdvice(fmt::format("stat of '{}' failed", directories[i]), errno);
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
  FOREBAY_ASSIGN_OR_RETURN(const FoundManifest found, ReadManifest(directory));
  return StripeIdentity{found.manifest.uuid, found.manifest.stripe,
                        static_cast<int>(found.manifest.stripe_weights.size())};
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
    // The lock stays with a mark that could not be removed.
    if (folder.lock.valid() && UnmarkCreating(folder.directory).ok()) RemoveLock(folder.directory);
    RemoveMade(folder.made);
  }
  return status;
}

void RemoveMade(std::span<const std::string> made) {
  for (const std::string& directory : made) ::rmdir(directory.c_str());
}

absl::StatusOr<OpenedFolders> OpenFolders(std::span<const std::string> directories,
                                          const std::string& uuid, StoreAccess access) {
  FOREBAY_RETURN_IF_ERROR(RefuseSameFolder(directories));
  FOREBAY_ASSIGN_OR_RETURN(std::vector<Found> found, FindParts(directories, uuid));
  OpenedFolders opened;
  for (Found& part : found) {
    const std::string& directory = part.folder.directory;
    FOREBAY_ASSIGN_OR_RETURN(part.folder.lock, LockFor(access, JoinPath(directory, kLockName)));
    // A manifest never changes, but another store may have come into the folder meanwhile.
    FOREBAY_ASSIGN_OR_RETURN(const FoundManifest now, ReadManifest(directory));
    if (EncodeManifest(now.manifest) != EncodeManifest(part.manifest)) {
      return EnvironmentError(fmt::format(
          "the store in '{}' was replaced by another while it was opened. Try again", directory));
    }
    opened.folders.push_back(std::move(part.folder));
  }
  opened.manifest = std::move(found.front().manifest);
  return opened;
}

bool IsAnyLocked(std::span<const std::string> directories) {
  return std::ranges::any_of(directories, [](const std::string& directory) {
    return IsStoreLocked(JoinPath(directory, kLockName));
  });
}

absl::StatusOr<int64_t> RemoveStoreFiles(const std::string& directory) {
  for (const char* name : kStoreFileNames) {
    FOREBAY_RETURN_IF_ERROR(CheckIsNoFolder(directory, name));
  }
  int64_t freed_bytes = 0;
  for (const char* name : kStoreFileNames) {
    if (std::string_view(name) == kOwnerName) continue;
    const std::string path = JoinPath(directory, name);
    const bool is_data = !path.ends_with(kManifestName);
    const int64_t size_bytes = is_data ? FileSize(path).value_or(0) : 0;
    FOREBAY_RETURN_IF_ERROR(RemoveFile(path));
    freed_bytes += size_bytes;
  }
  // Fails where something else is in it, which then stays.
  ::rmdir(JoinPath(directory, kCopyFolderName).c_str());
  // Last: until then they say whose the rest is, and that it may be removed.
  FOREBAY_RETURN_IF_ERROR(RemoveFile(JoinPath(directory, kOwnerName)));
  FOREBAY_RETURN_IF_ERROR(UnmarkCreating(directory));
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
