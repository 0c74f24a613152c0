#include "forebay/swap/store/store_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {
namespace {

// The files of a store that lie in a folder, by their names in kStoreFileNames, and the mark. Links
// and folders that have such a name count: what they hide may be a store.
absl::StatusOr<std::vector<std::string>> StoreFilesIn(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(directory));
  if (std::ranges::binary_search(names, kCopyFolderName)) {
    const std::string copy_folder = JoinPath(directory, kCopyFolderName);
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> copies, ListFolder(copy_folder));
    for (const std::string& name : copies) names.push_back(JoinPath(kCopyFolderName, name));
  }
  std::erase_if(names, [](const std::string& name) {
    return name != kCreatingName &&
           std::ranges::count(kStoreFileNames, std::string_view(name)) == 0;
  });
  return names;
}

enum class RecordFound : uint8_t { kNothing, kRecord, kDamaged };

// Looks for a commit record at `offset_bytes` of a file. A shorter file counts as not filled yet.
absl::StatusOr<RecordFound> LookForRecord(const std::string& path, int64_t offset_bytes,
                                          CommitRecord& record) {
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t size_bytes, FileSize(path));
  if (size_bytes < offset_bytes + kCommitRecordBytes) return RecordFound::kNothing;
  std::vector<std::byte> bytes(static_cast<size_t>(kCommitRecordBytes));
  FOREBAY_RETURN_IF_ERROR(PreadAll(fd.get(), bytes, offset_bytes, path));
  const absl::StatusOr<DecodedCopy> copy = DecodeCommitRecord(bytes, path);
  if (!copy.ok()) return RecordFound::kRecord;  // of another version
  if (copy->state == CopyState::kGood) record = copy->record;
  return copy->state == CopyState::kGood  ? RecordFound::kRecord
         : copy->state == CopyState::kBad ? RecordFound::kDamaged
                                          : RecordFound::kNothing;
}

// The first copy of a record is durable before the second one is touched, so a creation leaves one
// damaged copy at most. Before there is a manifest, other bytes may be in either for a moment: a
// new file is tried by writing to it.
absl::StatusOr<StoreState> StateByRecords(const std::string& directory,
                                          const std::vector<std::string>& files) {
  const auto has = [&](std::string_view name) { return std::ranges::count(files, name) > 0; };
  int num_damaged = 0;
  CommitRecord record;
  for (const char* name : kCommitNames) {
    if (!has(name)) continue;
    FOREBAY_ASSIGN_OR_RETURN(const RecordFound found,
                             LookForRecord(JoinPath(directory, name), 0, record));
    if (found == RecordFound::kRecord) return StoreState::kUnfinished;
    if (found == RecordFound::kDamaged) ++num_damaged;
  }
  const bool has_manifest = std::ranges::any_of(kManifestNames, has);
  return num_damaged == kNumCopies && has_manifest ? StoreState::kThere : StoreState::kHalfMade;
}

// Whether checksums were written for a later commit than the first. Then the mark is not of this
// store's creation, which removes it before.
absl::StatusOr<bool> HasLaterSeals(const std::string& directory,
                                   const std::vector<std::string>& files) {
  for (const char* name : kSealsNames) {
    if (std::ranges::count(files, std::string_view(name)) == 0) continue;
    const std::string path = JoinPath(directory, name);
    FOREBAY_ASSIGN_OR_RETURN(const int64_t size_bytes, FileSize(path));
    for (const int64_t offset_bytes : {int64_t{0}, size_bytes / kMostSlots}) {
      CommitRecord record;
      FOREBAY_ASSIGN_OR_RETURN(const RecordFound found, LookForRecord(path, offset_bytes, record));
      if (found == RecordFound::kRecord && record.sequence > 1) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<FolderState> LookAtFolder(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> files, StoreFilesIn(directory));
  const bool is_marked = std::erase(files, kCreatingName) > 0;
  FolderState found;
  if (!files.empty()) found.file = files.front();
  if (!is_marked) {
    found.state = files.empty() ? StoreState::kNone : StoreState::kThere;
    return found;
  }
  const absl::Status unclear = [&]() -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(found.state, StateByRecords(directory, files));
    FOREBAY_ASSIGN_OR_RETURN(const bool has_later, HasLaterSeals(directory, files));
    if (has_later) found.state = StoreState::kThere;
    return absl::OkStatus();
  }();
  FOREBAY_RETURN_IF_ERROR(Annotate(
      unclear, fmt::format("whether the store in '{}' was ever committed cannot be said, so "
                           "nothing was changed there",
                           directory)));
  return found;
}

absl::StatusOr<StoreState> LookForStore(std::span<const std::string> directories) {
  StoreState highest = StoreState::kNone;
  for (const std::string& directory : directories) {
    FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(directory));
    highest = std::max(highest, found.state);
  }
  return highest;
}

absl::Status MarkCreating(const std::string& directory) {
  return WriteFileAtomically(JoinPath(directory, kCreatingName),
                             "This store is being made. Its first commit removes this file.\n");
}

absl::Status UnmarkCreating(const std::string& directory) {
  const std::string path = JoinPath(directory, kCreatingName);
  if (::unlink(path.c_str()) == 0) return SyncDirectory(directory);
  if (errno == ENOENT) return absl::OkStatus();
  return StorageErrorWithAdvice(fmt::format("removing '{}' failed", path), errno);
}

}  // namespace forebay
