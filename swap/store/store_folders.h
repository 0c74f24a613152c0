// The folders of a store: what lies in them by name, who may take them, and which of them belong
// together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/file.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/swap/store/store_access.h"

namespace forebay {

// The files of a folder (docs/formats.md, "The store"). What tells which tiles are whole is there
// twice: a second time in a folder of its own, so that neither a bad block nor a lost file takes
// both.
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kWeightsName[] = "weights.fbs";
inline constexpr char kStateName[] = "state.fbs";
inline constexpr char kScratchName[] = "gradients.fbs";  // named when it had gradients alone
inline constexpr char kCommitName[] = "commit.fbs";
inline constexpr char kSealsName[] = "seals.fbs";
inline constexpr char kIntentName[] = "intent.fbs";  // of stores of earlier versions
inline constexpr char kLockName[] = "lock";
inline constexpr int kNumCopies = 2;
inline constexpr char kCopyFolderName[] = "copy";
inline constexpr const char* kManifestNames[kNumCopies] = {kManifestName, "copy/manifest.json"};
inline constexpr const char* kCommitNames[kNumCopies] = {kCommitName, "copy/commit.fbs"};
inline constexpr const char* kSealsNames[kNumCopies] = {kSealsName, "copy/seals.fbs"};
// commit.fbs has a block of zeros here that means nothing. An engine is tried by reading it.
inline constexpr int64_t kSpareBlockOffsetBytes = kCommitRecordBytes;
// Whose store it is, where its owner has written that (StoreOptions::write_owner). The store itself
// asks for one key of it alone: kOwnersStoreKey, its uuid as ToHex has it.
inline constexpr char kOwnerName[] = "owner.json";
inline constexpr char kOwnersStoreKey[] = "store_uuid";
// Every file that only a store has in its folder. Not among them: the lock, and the mark of a
// creation (store_state.h).
inline constexpr const char* kStoreFileNames[] = {
    kManifestNames[0], kManifestNames[1], kWeightsName,   kStateName,     kScratchName, kIntentName,
    kCommitNames[0],   kCommitNames[1],   kSealsNames[0], kSealsNames[1], kOwnerName};

// "'a'" and "'a', 'b'": for messages.
std::string QuotedList(std::span<const std::string> directories);

// UsageError when two of them are one folder, however they are spelled.
absl::Status RefuseSameFolder(std::span<const std::string> directories);

// DoesNotFitError when a file system has less room than the folders on it need together;
// StorageError when one cannot be asked. `needed_bytes`: by folder. `what` begins the message: "the
// store needs"; `fix` ends it with what the user may do other than free space: "choose another
// folder (--nvme)".
absl::Status CheckFreeSpace(std::span<const std::string> directories,
                            std::span<const int64_t> needed_bytes, const std::string& what,
                            const std::string& fix);

// What the manifest in a folder says that the folder is.
struct StripeIdentity {
  StoreUuid uuid = {};
  int stripe = 0;
  int num_stripes = 1;
};
// BadInputError when no store lies there; CorruptError when its manifest is damaged; StorageError
// when it cannot be read. Takes no lock: a manifest is written once.
absl::StatusOr<StripeIdentity> ReadStripeIdentity(const std::string& directory);

// One folder in use by this process.
struct StoreFolder {
  std::string directory;
  UniqueFd lock;                  // as its StoreAccess has it; invalid where that takes none
  std::vector<std::string> made;  // it and folders above it that ClaimFolders made, deepest first
  // Copies of its manifest that cannot be used, as paths.
  std::vector<std::string> damaged_manifests;
};

// Makes the folders, takes their locks, makes sure that nothing is in the way of a new store, and
// marks them as being created. What a creation left that was killed before its first commit
// (StoreState::kHalfMade) is removed. UsageError if a folder holds anything else of a store, or is
// named twice; EnvironmentError if one is in use; StorageError if a folder cannot be read. After an
// error the folders are as they were, except for such remains.
absl::StatusOr<std::vector<StoreFolder>> ClaimFolders(std::span<const std::string> directories);

// Undoes what a claim made, `made` of a StoreFolder, as far as the folders are empty.
void RemoveMade(std::span<const std::string> made);

// The manifest of the store in `directories`, which may be named in any order, and its folders in
// the order of their stripes. `uuid`: of the store that is meant, as ToHex has it; "": whichever
// lies there. UsageError when a folder is named twice; BadInputError when one holds no store, is
// missing, or is a copy of another; CorruptError when they do not belong together, are of another
// store than `uuid`, or have no whole manifest; EnvironmentError when one is in use;
// StorageError. Nothing is touched, no lock either, before they are known to be the right ones.
struct OpenedFolders {
  StoreManifest manifest;  // of the first stripe
  std::vector<StoreFolder> folders;
};
absl::StatusOr<OpenedFolders> OpenFolders(std::span<const std::string> directories,
                                          const std::string& uuid, StoreAccess access);
// Whether somebody writes to the store in one of `directories`. Waits for nothing.
bool IsAnyLocked(std::span<const std::string> directories);

// The manifest and the data, and as the last file the mark of a creation; the folder and its lock
// stay. By whoever holds the lock. Bytes of data that were freed; StorageError if a file could not
// be removed, and those after it are there still. A folder in the place of a file is found before
// anything is removed.
absl::StatusOr<int64_t> RemoveStoreFiles(const std::string& directory);
// By whoever holds the lock, as the last thing: from then on another may take the folder.
void RemoveLock(const std::string& directory);
// Removes whole or unfinished stores, once the locks of all folders are taken, and the folders that
// nothing else is in. Bytes that were freed. UsageError when a folder is named twice,
// BadInputError when one has no lock, EnvironmentError when one is in use; nothing was removed
// then. StorageError, also when a file could not be removed: its folder can be removed later.
absl::StatusOr<int64_t> RemoveFolders(std::span<const std::string> directories);

struct RemovedParts {
  int64_t freed_bytes = 0;
  std::vector<std::string> not_there;  // no folder, or nothing of a store in it
  std::vector<std::string> of_others;  // what is in it belongs to another store, or to nobody known
};
// Removes what is left of the store `uuid` (as ToHex has it) from those of its folders that say
// that they are its: by manifest, commit record or owner.json. Their locks are taken first. Nothing
// in the others is touched. UsageError when a folder is named twice, EnvironmentError when one is
// in use; nothing was removed then. StorageError when one cannot be looked at, or a file not be
// removed.
absl::StatusOr<RemovedParts> RemoveParts(std::span<const std::string> directories,
                                         const std::string& uuid);

}  // namespace forebay
