// Small-file and path work for every module: configuration, manifests, records, logs. Bulk
// transfers of tensors go through aio/ instead.
//
// Rules (docs/design/trainer.md): created 0600, never through a symbolic link, replaced
// atomically (temporary file, fsync, rename, fsync of the folder).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace forebay {

// Returns `fd`, or, if it has the number of a standard stream, a duplicate with a higher number
// (O_CLOEXEC), and closes `fd`: if a program closed its standard streams, its output would
// otherwise go into a file of ours. -1 with errno: `fd` is -1, or there is no free descriptor (`fd`
// is closed).
int AboveStandardStreams(int fd);

// Owns a file descriptor, which is none of the standard streams. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  // Takes AboveStandardStreams(fd), and keeps its errno.
  explicit UniqueFd(int fd) : fd_(AboveStandardStreams(fd)) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  // Gives it up without closing it.
  int Release() { return std::exchange(fd_, -1); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

// open(2) with O_CLOEXEC, mode 0600 for O_CREAT, and O_NOFOLLOW when it may create. BadInputError
// when the file does not exist (and is not created), StorageError otherwise; the message names the
// path.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags);

// Reads or writes all of `data` at `offset_bytes`, resuming after short transfers and EINTR.
// `path` is for messages. StorageError; a read past the end of the file is a CorruptError.
absl::Status PreadAll(int fd, std::span<std::byte> data, int64_t offset_bytes,
                      std::string_view path);
absl::Status PwriteAll(int fd, std::span<const std::byte> data, int64_t offset_bytes,
                       std::string_view path);
// fdatasync; a failure is a StorageError and must never be retried (docs/design/store.md).
absl::Status SyncFile(int fd, std::string_view path);

// The whole file. BadInputError when it is missing or longer than `max_bytes`.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);
// Replaces `path` atomically and durably.
absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);
// fsync of a folder, so that names created, renamed or removed in it survive a power cut.
absl::Status SyncDirectory(const std::string& directory);

// False where the file system refuses to say as well: for messages about what others made, use
// ProbePath.
bool FileExists(const std::string& path);
// Whether there is something at `path`, be it a link that leads nowhere. StorageError with errno
// and fix if that cannot be known: EACCES on a folder of the way above all.
absl::StatusOr<bool> ProbePath(const std::string& path);
bool IsDirectory(const std::string& path);
// The names of what is in a folder, sorted; none where there is no folder. StorageError.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& directory);
// `path` itself, or the nearest folder above it that is there.
std::string NearestFolder(const std::string& path);
absl::StatusOr<int64_t> FileSize(const std::string& path);
// mkdir -p, mode 0700 for the folders it makes. A final component that is a symbolic link to a
// folder is accepted (users link /data); StorageError otherwise.
absl::Status MakeDirectories(const std::string& path);
// Removes a tree without following symbolic links.
absl::Status RemoveTree(const std::string& path);
// Bytes available to this user on the file system of `path` (which must exist).
absl::StatusOr<int64_t> FreeSpace(const std::string& path);
// "a/b" from "a" and "b".
std::string JoinPath(std::string_view directory, std::string_view name);
// `path` as an absolute path, which does not change with a later chdir. UsageError: it is empty.
// StorageError: it is relative, and the current folder cannot be read.
absl::StatusOr<std::string> AbsolutePath(const std::string& path);
absl::StatusOr<std::vector<std::string>> AbsolutePaths(std::span<const std::string> paths);
// The folder of the running program (/proc/self/exe).
std::string ProgramDirectory();

}  // namespace forebay
