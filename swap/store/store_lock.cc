#include "forebay/swap/store/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <thread>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

using std::chrono::milliseconds;

// A process that works keeps its lock: this is for one that is about to end.
constexpr milliseconds kHolderPatience(2000);

// 0, EWOULDBLOCK when somebody else kept the lock all the time, or another errno.
// `kind`: LOCK_EX or LOCK_SH.
int LockWithPatience(int fd, int kind, milliseconds patience) {
  constexpr milliseconds kPause(20);
  for (milliseconds waited(0);; waited += kPause) {
    const int error = ::flock(fd, kind | LOCK_NB) == 0 ? 0 : errno;
    if (error != EWOULDBLOCK && error != EINTR) return error;
    if (waited >= patience) return error;
    std::this_thread::sleep_for(kPause);
  }
}

// The PID that the holder wrote, as text; "" when it has not come to it yet.
std::string ReadHolder(int fd) {
  std::array<char, 32> text = {};
  const ssize_t got = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string holder(text.data(), got > 0 ? static_cast<size_t>(got) : 0);
  return holder.substr(0, holder.find_first_not_of("0123456789"));
}

// The PID that the kernel has for the flock of an open file; "" when it tells none: in another
// PID namespace, or of a process that has ended. Lines of /proc/locks:
//   1: FLOCK  ADVISORY  WRITE 708 fd:01:12345 0 EOF
std::string KernelsHolder(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return "";
  const std::string wanted =
      fmt::format("{:02x}:{:02x}:{}", major(info.st_dev), minor(info.st_dev), info.st_ino);
  constexpr int64_t kMaxBytes = int64_t{16} << 20;
  const absl::StatusOr<std::string> locks = ReadWholeFile("/proc/locks", kMaxBytes);
  std::istringstream lines(locks.ok() ? *locks : "");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, access, pid, file;
    words >> number >> kind >> advisory >> access >> pid >> file;
    if (kind == "FLOCK" && file == wanted &&
        pid.find_first_not_of("0123456789") == std::string::npos) {
      return pid == "0" ? "" : pid;
    }
  }
  return "";
}

// False too where that cannot be told.
bool IsFileAt(int fd, const std::string& path) {
  struct stat open_file = {};
  struct stat named_file = {};
  return ::fstat(fd, &open_file) == 0 && ::stat(path.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

// A file that was put in the place of the lock is not written to.
absl::Status CheckIsLock(int fd, const std::string& path) {
  constexpr off_t kBytesMax = 64;
  struct stat info = {};
  if (::fstat(fd, &info) != 0)
    return StorageErrorWithAdvice(fmt::format("stat of '{}' failed", path), errno);
  if (info.st_size <= kBytesMax) return absl::OkStatus();
  return CorruptError(
      fmt::format("'{}' has {} bytes, and so is not the lock of a store, which has the number of a "
                  "process. Put back the files that belong there, or move it away",
                  path, info.st_size));
}

absl::Status StayedLockedError(int fd, const std::string& path, milliseconds patience) {
  const std::string holder = KernelsHolder(fd);
  return EnvironmentError(fmt::format(
      "'{}' stayed locked for {} ms by process {}, or by what it has in flight if it has ended. "
      "Wait for it to end, or end it (kill {}); where a disk does not answer, 'dmesg' says so",
      path, patience.count(), holder.empty() ? "(unknown)" : holder,
      holder.empty() ? "PID" : holder));
}

// `fd`: of the lock of `what`.
absl::Status InUseError(int fd, const std::string& path, std::string_view what) {
  // Readers leave their PID with the kernel alone: what the file has is of who wrote last.
  std::string holder = KernelsHolder(fd);
  const bool is_read = ::flock(fd, LOCK_SH | LOCK_NB) == 0;
  if (holder.empty() && !is_read) holder = ReadHolder(fd);
  return EnvironmentError(
      fmt::format("{} in '{}' is in use by process {}. Wait for it to end, or end it (kill {})",
                  what, std::filesystem::path(path).parent_path().string(),
                  holder.empty() ? "(unknown)" : holder, holder.empty() ? "PID" : holder));
}

// Written over, not emptied first, as a file keeps its block on a full disk. What others are told
// of the holder is no reason to stop where there is no room for it.
absl::Status WriteHolder(int fd, const std::string& path) {
  const std::string holder = fmt::format("{}\n", ::getpid());
  const auto size = static_cast<ssize_t>(holder.size());
  const ssize_t written = ::pwrite(fd, holder.data(), holder.size(), 0);
  if (written != size && errno != ENOSPC && errno != EDQUOT) {
    return StorageErrorWithAdvice(fmt::format("writing to '{}' failed", path), errno);
  }
  if (::ftruncate(fd, std::max<ssize_t>(written, 0)) == 0) return absl::OkStatus();
  return StorageErrorWithAdvice(fmt::format("cutting '{}' to its length failed", path), errno);
}

}  // namespace

absl::Status LockOpenFile(int fd, const std::string& path, milliseconds patience) {
  const int error = LockWithPatience(fd, LOCK_EX, patience);
  if (error == 0) return absl::OkStatus();
  if (error == EWOULDBLOCK) return StayedLockedError(fd, path, patience);
  return StorageError(fmt::format("locking '{}' failed", path), error);
}

absl::Status ShareOpenFile(int fd, const std::string& path, milliseconds patience) {
  const int error = LockWithPatience(fd, LOCK_SH, patience);
  return error == EWOULDBLOCK ? StayedLockedError(fd, path, patience) : absl::OkStatus();
}

absl::Status CheckNotLocked(const std::string& path, std::string_view what) {
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd.ok()) return absl::OkStatus();
  // Whoever takes the lock this very moment waits longer than this one is held.
  const bool is_locked = ::flock(fd->get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return is_locked ? InUseError(fd->get(), path, what) : absl::OkStatus();
}

absl::StatusOr<UniqueFd> TakeStoreLock(const std::string& path, std::string_view what) {
  UniqueFd fd;
  int error = 0;
  // Who removes a store removes its lock while it is held: a lock that was waited for may be one
  // that nobody else will ever meet.
  do {
    FOREBAY_ASSIGN_OR_RETURN(fd, OpenFile(path, O_RDWR | O_CREAT));
    FOREBAY_RETURN_IF_ERROR(CheckIsLock(fd.get(), path));
    error = LockWithPatience(fd.get(), LOCK_EX, kHolderPatience);
  } while (error == 0 && !IsFileAt(fd.get(), path));
  if (error == EWOULDBLOCK) return InUseError(fd.get(), path, what);
  if (error != 0) return StorageError(fmt::format("locking '{}' failed", path), error);
  FOREBAY_RETURN_IF_ERROR(WriteHolder(fd.get(), path));
  return fd;
}

absl::StatusOr<UniqueFd> ShareStoreLock(const std::string& path) {
  absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  if (!fd.ok()) return UniqueFd();
  const int error = LockWithPatience(fd->get(), LOCK_SH, kHolderPatience);
  if (error == EWOULDBLOCK) return InUseError(fd->get(), path, "the store");
  return fd;
}

bool IsStoreLocked(const std::string& path) {
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  return fd.ok() && LockWithPatience(fd->get(), LOCK_SH, milliseconds(0)) == EWOULDBLOCK;
}

}  // namespace forebay
