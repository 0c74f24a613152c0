#include "forebay/train/run_lock.h"

#include "forebay/base/errors.h"
#include "forebay/swap/store_lock.h"
#include "forebay/train/run_folder.h"

namespace forebay {
namespace {

constexpr char kWhat[] = "the run";

}  // namespace

absl::StatusOr<UniqueFd> TakeRunLock(const std::string& out) {
  return TakeStoreLock(RunPaths(out).lock, kWhat);
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
