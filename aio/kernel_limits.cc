#include "forebay/aio/kernel_limits.h"

#include <sys/resource.h>

#include <cerrno>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

// The first line of a small file of /proc; "" when there is none.
std::string Setting(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, 4096);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

std::string MemlockLimit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} KiB", limit.rlim_cur >> 10);
}

}  // namespace

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
    case ENOMEM:
      return fmt::format(
          "{}: the limit of locked memory is {} (kernels before 5.12 count rings). Raise it with "
          "'ulimit -l', LimitMEMLOCK= or --ulimit memlock=-1",
          refused, MemlockLimit());
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
             ": a seccomp profile forbids it. Allow io_setup, io_submit, io_getevents "
             "and io_destroy";
    case EINVAL:
      return refused + ": the kernel is older than 4.18";
    default:
      return refused;
  }
}

std::string WhyNotRegistered(int error_number, size_t size_bytes) {
  const size_t mib = (size_bytes + (size_t{1} << 20) - 1) >> 20;
  if (error_number == ENOMEM) {
    return fmt::format(
        "io_uring: {} MiB of buffers were not registered ({}): the limit of locked memory (ulimit "
        "-l) is {}. Raise it to {} KiB or more with 'ulimit -l', LimitMEMLOCK= or --ulimit "
        "memlock=-1; until then each transfer costs a little more CPU",
        mib, ErrnoText(error_number), MemlockLimit(), size_t{1024} * mib);
  }
  return fmt::format(
      "io_uring: {} MiB of buffers were not registered: {}. Each transfer costs a little more CPU",
      mib, ErrnoText(error_number));
}

}  // namespace forebay
