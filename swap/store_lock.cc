#include "forebay/swap/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// 0, EWOULDBLOCK when somebody else kept the lock all the time, or another errno.
int LockWithPatience(int fd) {
  using std::chrono::milliseconds;
  constexpr milliseconds kPatience(2000);
  constexpr milliseconds kPause(20);
  for (milliseconds waited(0);; waited += kPause) {
    const int error = ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (error != EWOULDBLOCK && error != EINTR) return error;
    if (waited >= kPatience) return error;
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

}  // namespace

absl::Status LockOpenFile(int fd, const std::string& path) {
  const int error = LockWithPatience(fd);
  if (error == 0) return absl::OkStatus();
  if (error != EWOULDBLOCK) return StorageError(fmt::format("locking '{}' failed", path), error);
  return EnvironmentError(
      fmt::format("'{}' is locked by another process, or by writes of one that has just ended. "
                  "Wait for it to end, or end it",
                  path));
}

absl::StatusOr<UniqueFd> TakeStoreLock(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT));
  const int error = LockWithPatience(fd.get());
  if (error == EWOULDBLOCK) {
    const std::string holder = ReadHolder(fd.get());
    return EnvironmentError(fmt::format(
        "the store of '{}' is in use by process {}. Wait for it to end, or end it (kill {})", path,
        holder.empty() ? "(unknown)" : holder, holder.empty() ? "PID" : holder));
  }
  if (error != 0) return StorageError(fmt::format("locking '{}' failed", path), error);
  const std::string holder = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd.get(), 0) != 0) {
    return StorageError(fmt::format("emptying '{}' failed", path), errno);
  }
  FOREBAY_RETURN_IF_ERROR(PwriteAll(fd.get(), std::as_bytes(std::span(holder)), 0, path));
  return fd;
}

}  // namespace forebay
