#include "forebay/tests/train/faults/failing_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {
namespace {

struct Watch {
  std::string folder;
  std::optional<FileCall> fail;
  int error_number = 0;
  bool exchanges = true;
  std::vector<FileCall> calls;
  std::map<FileCall, int64_t> num_same;
};

// What the wrapped functions, which have no object, look at.
std::mutex watch_mutex;
Watch* watch = nullptr;

std::string PathOf(int fd) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  // The kernel's name of a file without one has a number that is another in every run.
  return path.string().ends_with(" (deleted)") ? path.parent_path() / "nameless" : path;
}

// Counts a call; true when it is to fail, with errno set.
bool Fails(std::string_view function, const std::string& path) {
  const std::lock_guard lock(watch_mutex);
  if (watch == nullptr || !path.starts_with(watch->folder)) return false;
  FileCall call = {std::string(function), path.substr(watch->folder.size()), 0};
  call.nth = watch->num_same[call]++;
  watch->calls.push_back(call);
  if (call != watch->fail) return false;
  if (watch->error_number == kKillsTheProcess) ::kill(::getpid(), SIGKILL);
  errno = watch->error_number;
  return true;
}

// Bulk transfers of an engine that happens to use these calls.
bool FailsUnlessBulk(std::string_view function, int fd) {
  const int error = errno;
  const std::string path = PathOf(fd);
  errno = error;
  return !path.ends_with(".fbs") && Fails(function, path);
}

// NFS says the same.
bool RefusesExchanges() {
  const std::lock_guard lock(watch_mutex);
  if (watch == nullptr || watch->exchanges) return false;
  errno = EINVAL;
  return true;
}

}  // namespace

FailingCalls::FailingCalls(std::string folder, std::optional<FileCall> fail, int error_number,
                           bool exchanges) {
  const std::lock_guard lock(watch_mutex);
  FOREBAY_CHECK(watch == nullptr);
  watch = new Watch{std::move(folder), std::move(fail), error_number, exchanges, {}, {}};
}

FailingCalls::~FailingCalls() {
  const std::lock_guard lock(watch_mutex);
  delete std::exchange(watch, nullptr);
}

std::vector<FileCall> FailingCalls::calls() const {
  const std::lock_guard lock(watch_mutex);
  return watch->calls;
}

}  // namespace forebay

// ---- In the place of libc's

extern "C" {

int __real_open(const char* path, int flags, ...);
int __real_mkdir(const char* path, mode_t mode);
int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned int flags);
int __real_fallocate(int fd, int mode, off_t offset, off_t size);
int __real_ftruncate(int fd, off_t size);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __real_flock(int fd, int operation);
ssize_t __real_pread(int fd, void* data, size_t size, off_t offset);
ssize_t __real_pwrite(int fd, const void* data, size_t size, off_t offset);

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  return forebay::Fails("open", path) ? -1 : __real_open(path, flags, mode);
}

int __wrap_mkdir(const char* path, mode_t mode) {
  return forebay::Fails("mkdir", path) ? -1 : __real_mkdir(path, mode);
}

int __wrap_rename(const char* from, const char* to) {
  return forebay::Fails("rename", to) ? -1 : __real_rename(from, to);
}

int __wrap_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned int flags) {
  if (forebay::Fails("renameat2", to) || forebay::RefusesExchanges()) return -1;
  return __real_renameat2(from_folder, from, to_folder, to, flags);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t size) {
  if (forebay::Fails("fallocate", forebay::PathOf(fd))) return -1;
  return __real_fallocate(fd, mode, offset, size);
}

int __wrap_ftruncate(int fd, off_t size) {
  return forebay::Fails("ftruncate", forebay::PathOf(fd)) ? -1 : __real_ftruncate(fd, size);
}

int __wrap_fdatasync(int fd) {
  return forebay::FailsUnlessBulk("fdatasync", fd) ? -1 : __real_fdatasync(fd);
}

int __wrap_fsync(int fd) {
  return forebay::FailsUnlessBulk("fsync", fd) ? -1 : __real_fsync(fd);
}

int __wrap_flock(int fd, int operation) {
  return forebay::Fails("flock", forebay::PathOf(fd)) ? -1 : __real_flock(fd, operation);
}

ssize_t __wrap_pread(int fd, void* data, size_t size, off_t offset) {
  return forebay::FailsUnlessBulk("pread", fd) ? -1 : __real_pread(fd, data, size, offset);
}

ssize_t __wrap_pwrite(int fd, const void* data, size_t size, off_t offset) {
  return forebay::FailsUnlessBulk("pwrite", fd) ? -1 : __real_pwrite(fd, data, size, offset);
}

}  // extern "C"
