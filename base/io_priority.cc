#include "forebay/base/io_priority.h"

#include <linux/ioprio.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace forebay {
namespace {

constexpr int kThisThread = 0;
// Not the idle class: beside a run that never leaves its disk alone it would get nothing at all.
constexpr int kLowest = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7);

bool SetPriority(int priority) {
  return ::syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, kThisThread, priority) == 0;
}

}  // namespace

LowIoPriority::LowIoPriority() {
  const auto before = static_cast<int>(::syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, kThisThread));
  if (before >= 0 && SetPriority(kLowest)) before_ = before;
}

LowIoPriority::~LowIoPriority() {
  if (before_ >= 0) SetPriority(before_);
}

}  // namespace forebay
