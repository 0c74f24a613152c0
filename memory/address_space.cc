#include "forebay/memory/address_space.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/memory/process_memory.h"

namespace forebay {
namespace {

// Libraries map this much for themselves, measured with room to spare: oneDNN's generated code and
// scratch memory, the rings of an engine, what buffers lose to their alignment, the heap.
constexpr int64_t kLibraryBytes = int64_t{96} << 20;

int64_t LimitBytes() {
  struct rlimit limit = {};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  return limited ? static_cast<int64_t>(std::min<uint64_t>(limit.rlim_cur, kNone)) : kNone;
}

int64_t StackBytes() {
  pthread_attr_t attributes;
  size_t bytes = size_t{8} << 20;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &bytes);
    ::pthread_attr_destroy(&attributes);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

bool AddressSpaceIsLimited() {
  return LimitBytes() != std::numeric_limits<int64_t>::max();
}

absl::Status CheckAddressSpace(int64_t buffer_bytes, int num_threads) {
  if (!AddressSpaceIsLimited()) return absl::OkStatus();
  const int64_t limit_bytes = LimitBytes();
  const int64_t needed_bytes =
      ReadProcessMemory().mapped_bytes + buffer_bytes + num_threads * StackBytes() + kLibraryBytes;
  if (needed_bytes <= limit_bytes) return absl::OkStatus();
  return OutOfMemoryError(fmt::format(
      "this process may map {} of memory ('ulimit -v'), and needs {}: what a thread or a library "
      "maps counts whether it is used or not. Use 'ulimit -v {}' or more{}",
      FormatBinaryBytes(limit_bytes), FormatBinaryBytes(needed_bytes), (needed_bytes + 1023) / 1024,
      buffer_bytes > 0 ? ", or a smaller --ram" : ""));
}

}  // namespace forebay
