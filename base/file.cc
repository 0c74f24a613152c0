#include "forebay/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/lfs_pointer.h"
#include "forebay/base/shared_file.h"

namespace forebay {
namespace {

// Asked for beyond the size that a file claims, so that its end shows without a further call.
constexpr size_t kReadAheadBytes = 4096;

absl::Status WithAccessAdvice(const absl::Status& status) {
  return StorageError(MessageOf(status) +
                      ". Run forebay as a user who may, or have the owner give this one the right "
                      "(chmod, chown) to "
                      "it and to every folder on the way");
}

// Permissions, of which the umask takes some away.
constexpr mode_t kPrivateFile = 0600;
constexpr mode_t kSharedFile = 0666;
constexpr mode_t kPrivateFolder = 0700;
constexpr mode_t kSharedFolder = 0777;

absl::StatusOr<UniqueFd> OpenFileAs(mode_t mode, const std::string& path, int flags) {
  const bool may_create = (flags & O_CREAT) != 0;
  const int all_flags = flags | O_CLOEXEC | (may_create ? O_NOFOLLOW : 0);
  int fd = -1;
  do {
    fd = ::open(path.c_str(), all_flags, mode);
  } while (fd < 0 && errno == EINTR);
  UniqueFd opened(fd);
  if (opened.valid()) return opened;
  const int error = errno;
  if (!may_create && (error == ENOENT || error == ENOTDIR)) {
    return BadInputError(fmt::format("'{}' does not exist", path));
  }
  if ((all_flags & O_NOFOLLOW) != 0 && error == ELOOP) {
    return StorageError(
        fmt::format("'{}' is a symbolic link; forebay does not write through links it did not "
                    "make. Remove it or "
                    "choose another path",
                    path));
  }
  const absl::Status failed = StorageError(fmt::format("opening '{}' failed", path), error);
  return error == EACCES ? WithAccessAdvice(failed) : failed;
}

absl::Status WriteNewFile(mode_t mode, const std::string& path, std::string_view contents) {
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAs(mode, path, O_WRONLY | O_CREAT | O_EXCL));
  FOREBAY_RETURN_IF_ERROR(PwriteAll(fd.get(), std::as_bytes(std::span(contents)), 0, path));
  return SyncFile(fd.get(), path);
}

absl::Status WriteAtomically(mode_t mode, const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp";
  ::unlink(temporary.c_str());  // of a writer that was killed
  absl::Status status = WriteNewFile(mode, temporary, contents);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = StorageError(fmt::format("renaming '{}' to '{}' failed", temporary, path), errno);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return SyncDirectory(directory.empty() ? "." : directory);
}

absl::Status MakeFolders(mode_t mode, const std::string& path) {
  std::string partial;
  size_t position = 0;
  while (position <= path.size()) {
    const size_t slash = std::min(path.find('/', position), path.size());
    partial = path.substr(0, slash);
    position = slash + 1;
    if (partial.empty() || IsDirectory(partial)) continue;
    if (::mkdir(partial.c_str(), mode) != 0 && !(errno == EEXIST && IsDirectory(partial))) {
      return StorageError(fmt::format("creating the folder '{}' failed", partial), errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<struct stat> StatOf(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) return info;
  if (errno == ENOENT) return BadInputError(fmt::format("'{}' does not exist", path));
  return StorageError(fmt::format("stat of '{}' failed", path), errno);
}

}  // namespace

int AboveStandardStreams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  return above;
}

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags) {
  return OpenFileAs(kPrivateFile, path, flags);
}

absl::StatusOr<UniqueFd> CreateSharedFile(const std::string& path, int flags) {
  return OpenFileAs(kSharedFile, path, flags | O_CREAT);
}

absl::Status PreadAll(int fd, std::span<std::byte> data, int64_t offset_bytes,
                      std::string_view path) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t got = ::pread(fd, data.data() + done, data.size() - done,
                                offset_bytes + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return StorageErrorWithAdvice(
          fmt::format("reading {} bytes of '{}' at {} failed", data.size(), path, offset_bytes),
          errno);
    }
    if (got == 0) {
      return CorruptError(
          fmt::format("'{}' ends at {}, but {} bytes were expected at {}: it is "
                      "truncated",
                      path, offset_bytes + static_cast<int64_t>(done), data.size(), offset_bytes));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status PwriteAll(int fd, std::span<const std::byte> data, int64_t offset_bytes,
                       std::string_view path) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t put = ::pwrite(fd, data.data() + done, data.size() - done,
                                 offset_bytes + static_cast<int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      return StorageErrorWithAdvice(
          fmt::format("writing {} bytes to '{}' at {} failed", data.size(), path, offset_bytes),
          put < 0 ? errno : EIO);
    }
    done += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

absl::Status SyncFile(int fd, std::string_view path) {
  if (::fdatasync(fd) != 0) {
    return StorageErrorWithAdvice(
        fmt::format("flushing '{}' to the device failed; what was written since the "
                    "last flush may be lost",
                    path),
        errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  // Without O_NONBLOCK a FIFO would be waited for instead of refused; regular files ignore it.
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0)
    return StorageError(fmt::format("stat of '{}' failed", path), errno);
  if (!S_ISREG(info.st_mode)) return BadInputError(fmt::format("'{}' is not a regular file", path));
  const auto too_long = [&](int64_t size_bytes) {
    return BadInputError(fmt::format("'{}' has {} bytes; at most {} are expected in such a file",
                                     path, size_bytes, max_bytes));
  };
  if (info.st_size > max_bytes) return too_long(info.st_size);
  // To the end of the file, not for st_size bytes: files of /proc and /sys say 0 and have contents.
  std::string contents;
  for (;;) {
    const size_t done = contents.size();
    const size_t left = static_cast<size_t>(info.st_size) > done ? info.st_size - done : 0;
    contents.resize(done + left + kReadAheadBytes);
    const ssize_t got =
        ::pread(fd.get(), contents.data() + done, contents.size() - done, static_cast<off_t>(done));
    contents.resize(done + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno != EINTR)
      return StorageError(fmt::format("reading '{}' failed", path), errno);
    if (static_cast<int64_t>(contents.size()) > max_bytes) return too_long(contents.size());
    if (got > 0) continue;
    FOREBAY_RETURN_IF_ERROR(RefuseLfsPointer(contents, path));
    return contents;
  }
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  return WriteAtomically(kPrivateFile, path, contents);
}

absl::Status WriteSharedFileAtomically(const std::string& path, std::string_view contents) {
  return WriteAtomically(kSharedFile, path, contents);
}

absl::Status SyncDirectory(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(directory, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) {
    return StorageError(fmt::format("fsync of the folder '{}' failed", directory), errno);
  }
  return absl::OkStatus();
}

bool FileExists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

absl::StatusOr<bool> ProbePath(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0) return true;
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) return false;
  const absl::Status failed = StorageError(fmt::format("looking at '{}' failed", path), error);
  return error == EACCES ? WithAccessAdvice(failed) : failed;
}

bool IsDirectory(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  // Not by range: that throws where reading on fails.
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error.value() == ENOENT || error.value() == ENOTDIR) return std::vector<std::string>();
  if (error) {
    const absl::Status failed =
        StorageError(fmt::format("listing '{}' failed", directory), error.value());
    return error.value() == EACCES ? WithAccessAdvice(failed) : failed;
  }
  std::ranges::sort(names);
  return names;
}

std::string NearestFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  while (!error && !IsDirectory(at.string()) && at != at.parent_path()) at = at.parent_path();
  return at.string();
}

absl::StatusOr<int64_t> FileSize(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const struct stat info, StatOf(path));
  return static_cast<int64_t>(info.st_size);
}

absl::Status MakeDirectories(const std::string& path) {
  return MakeFolders(kPrivateFolder, path);
}

absl::Status MakeSharedDirectories(const std::string& path) {
  return MakeFolders(kSharedFolder, path);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return StorageError(fmt::format("removing '{}' failed", path), error.value());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FreeSpace(const std::string& path) {
  struct statvfs info = {};
  if (::statvfs(path.c_str(), &info) != 0) {
    return StorageError(fmt::format("asking for the free space of '{}' failed", path), errno);
  }
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  return fmt::format("{}{}{}", directory, directory.back() == '/' ? "" : "/", name);
}

absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  if (path.empty()) {
    return UsageError("a folder is named by an empty text. Name it, or '.' for the current one");
  }
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error).string();
  if (!error) return absolute;
  return StorageError(
      fmt::format("'{}' is relative to the current folder, which cannot be known: {}. Name the "
                  "folder from the root on",
                  path, error.message()));
}

absl::StatusOr<std::vector<std::string>> AbsolutePaths(std::span<const std::string> paths) {
  std::vector<std::string> absolute;
  for (const std::string& path : paths) {
    FOREBAY_ASSIGN_OR_RETURN(absolute.emplace_back(), AbsolutePath(path));
  }
  return absolute;
}

std::string ProgramDirectory() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string() : program.parent_path().string();
}

}  // namespace forebay
