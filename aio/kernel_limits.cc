#include "forebay/aio/kernel_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

// The first line of a small file of /proc; "" when there is none.
std::string Setting(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, 4096);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

// Who has CAP_IPC_LOCK, root mostly, is not bound by the limit.
bool MayLockAnything() {
  constexpr std::string_view kEffective = "\nCapEff:\t";
  constexpr int kIpcLock = 14;  // linux/capability.h
  const std::string status = ReadWholeFile("/proc/self/status", 1 << 16).value_or("");
  const size_t at = status.find(kEffective);
  if (at == std::string::npos) return false;
  const char* const digits = status.c_str() + at + kEffective.size();
  return (std::strtoull(digits, nullptr, 16) >> kIpcLock & 1) != 0;
}

// Of a limit that is set.
std::string TextOf(const MemlockLimit& limit) {
  return limit.kib.has_value() ? fmt::format("{} KiB", *limit.kib) : "not known";
}

// A limit with which `refused_bytes` would not have been refused: all that the user's programs lock
// counts, which is no more than the limit now.
int64_t EnoughKib(const MemlockLimit& limit, int64_t refused_bytes, int64_t wanted_bytes) {
  return 1024 * std::max(MebibytesUp(wanted_bytes),
                         MebibytesUp(limit.kib.value_or(0) * 1024 + refused_bytes));
}

// Where no limit is in the way of locking memory.
constexpr std::string_view kShortOfMemory =
    "no limit of locked memory is set, so the kernel itself is short of memory. End other programs "
    "or take less";

// With the fix.
std::string WhyMemoryWasNotLocked(int64_t refused_bytes, int64_t wanted_bytes,
                                  const MemlockLimit& limit) {
  if (limit.none) return std::string(kShortOfMemory);
  return fmt::format(
      "the limit of locked memory (ulimit -l) is {}, for all that this user locks. Raise it to {} "
      "KiB or more with 'ulimit -l', LimitMEMLOCK= or --ulimit memlock=-1",
      TextOf(limit), EnoughKib(limit, refused_bytes, wanted_bytes));
}

}  // namespace

MemlockLimit MemlockLimit::Ask() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return {};
  if (limit.rlim_cur == RLIM_INFINITY || MayLockAnything()) return {true, std::nullopt};
  return {false, static_cast<int64_t>(limit.rlim_cur >> 10)};
}

std::string WhyNoIoUring(int error_number) {
  const std::string refused = "io_uring was refused with " + ErrnoText(error_number);
  switch (error_number) {
    case EPERM:
    case EACCES: {
      const std::string disabled = Setting("/proc/sys/kernel/io_uring_disabled");
      if (disabled == "1" || disabled == "2") {
        return fmt::format(
            "{}: it is switched off (kernel.io_uring_disabled={}). Allow it with 'sysctl "
            "kernel.io_uring_disabled=0'",
            refused, disabled);
      }
      return fmt::format(
          "{}: a seccomp profile forbids it, as Docker's and Podman's do. Start the container with "
          "a profile that allows io_uring_setup, io_uring_enter and io_uring_register "
          "(--security-opt seccomp=PROFILE.json)",
          refused);
    }
    case ENOSYS:
      return refused +
             ": the kernel is older than 5.1, was built without it, or the sandbox hides "
             "it. A kernel from 6.1 on is advised";
    case ENOMEM: {
      const MemlockLimit limit = MemlockLimit::Ask();
      if (limit.none) return fmt::format("{}: {}", refused, kShortOfMemory);
      return fmt::format(
          "{}: the limit of locked memory is {} (kernels before 5.12 count rings). Raise it with "
          "'ulimit -l', LimitMEMLOCK= or --ulimit memlock=-1",
          refused, TextOf(limit));
    }
    case EMFILE:
    case ENFILE:
      return refused + ": too many files are open. Raise 'ulimit -n'";
    default:
      return refused;
  }
}

std::string WhyNoLibaio(int error_number) {
  const std::string refused = "libaio was refused with " + ErrnoText(error_number);
  switch (error_number) {
    case EAGAIN:
      return fmt::format(
          "{}: all of the system's AIO requests are taken (fs.aio-nr is {} of fs.aio-max-nr {}). "
          "Raise it with 'sysctl fs.aio-max-nr=1048576'",
          refused, Setting("/proc/sys/fs/aio-nr"), Setting("/proc/sys/fs/aio-max-nr"));
    case EPERM:
      return refused +
             ": a seccomp profile forbids it. Allow io_setup, io_submit, io_getevents, "
             "io_pgetevents "
             "and io_destroy";
    case EINVAL:
      return refused + ": the kernel is older than 4.18";
    default:
      return refused;
  }
}

std::string WhyNotRegistered(int error_number, int64_t refused_bytes, int64_t wanted_bytes,
                             const MemlockLimit& limit) {
  const int64_t refused_mib = MebibytesUp(refused_bytes);
  const int64_t wanted_mib = MebibytesUp(wanted_bytes);
  const std::string what = fmt::format("io_uring: {} of buffers were not registered",
                                       refused_bytes < wanted_bytes
                                           ? fmt::format("{} of {} MiB", refused_mib, wanted_mib)
                                           : fmt::format("{} MiB", refused_mib));
  std::string why;
  switch (error_number) {
    case ENOMEM:
      why = WhyMemoryWasNotLocked(refused_bytes, wanted_bytes, limit);
      break;
    case E2BIG:
      why = fmt::format("the ring's table has room for {} buffers. Fewer and longer ones would fit",
                        kMaxRegisteredBuffers);
      break;
    case ETIMEDOUT:
      why =
          "a device that stalls holds the thread that does it. Look at 'dmesg' and the drive's "
          "health (smartctl -a)";
      break;
    default:
      return fmt::format("{}: {}. Each transfer costs a little more CPU", what,
                         ErrnoText(error_number));
  }
  return fmt::format("{} ({}): {}; until then each transfer costs a little more CPU", what,
                     ErrnoText(error_number), why);
}

void RegistrationGap::Add(const RegistrationGap& other) {
  wanted_bytes += other.wanted_bytes;
  refused_bytes += other.refused_bytes;
  if (error_number == 0) error_number = other.error_number;
}

std::string RegistrationGap::Note() const {
  return refused_bytes == 0 ? "" : WhyNotRegistered(error_number, refused_bytes, wanted_bytes);
}

}  // namespace forebay
