#include "forebay/train/files/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_lock.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

constexpr char kWhat[] = "the run";

// Some network and FUSE file systems are.
bool IsWithoutLocks(const std::string& path) {
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  if (!fd.ok() || ::flock(fd->get(), LOCK_SH | LOCK_NB) == 0) return false;
  return errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK;
}

}  // namespace

absl::StatusOr<UniqueFd> TakeRunLock(const std::string& out, std::string* note) {
  const std::string path = RunPaths(out).lock;
  absl::StatusOr<UniqueFd> lock = TakeStoreLock(path, kWhat);
  if (lock.ok() || !IsWithoutLocks(path)) return lock;
  if (note != nullptr) {
    *note = fmt::format(
        "the file system of '{}' has no locks (flock): that two commands do not use the run at "
        "once is for you to see to. The swap area has locks of its own",
        out);
  }
  return UniqueFd();
}

absl::Status CheckRunIsNotInUse(const std::string& out) {
  return CheckNotLocked(RunPaths(out).lock, kWhat);
}

absl::StatusOr<bool> LooksLikeARunLock(const std::string& path) {
  constexpr int64_t kMostBytes = 32;
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMostBytes);
  if (ExitCodeOf(text.status()) == ExitCode::kStorage) return text.status();
  return text.ok() && text->find_first_not_of("0123456789\n") == std::string::npos;
}

}  // namespace forebay
