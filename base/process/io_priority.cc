#include "forebay/base/process/io_priority.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace forebay {
namespace {

// As in linux/ioprio.h, which is no C++ in some versions (Debian's linux-libc-dev 6.1.192).
constexpr int kWhoIsAThread = 1;
constexpr int kBestEffort = 2;
constexpr int kClassShift = 13;

constexpr int kThisThread = 0;
// Not the idle class: beside a run that never leaves its disk alone it would get nothing at all.
constexpr int kLowest = kBestEffort << kClassShift | 7;

bool SetPriority(int priority) {
  return ::syscall(SYS_ioprio_set, kWhoIsAThread, kThisThread, priority) == 0;
}

}  // namespace

LowIoPriority::LowIoPriority() {
  const auto before = static_cast<int>(::syscall(SYS_ioprio_get, kWhoIsAThread, kThisThread));
  if (before >= 0 && SetPriority(kLowest)) before_ = before;
}

LowIoPriority::~LowIoPriority() {
  if (before_ >= 0) SetPriority(before_);
}

}  // namespace forebay
