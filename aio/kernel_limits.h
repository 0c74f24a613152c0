// Why the kernel refused, in words, with the fix: what stands between a machine and its fastest
// engine is nearly always a setting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace forebay {

// Buffers that one ring can have registered.
inline constexpr int kMaxRegisteredBuffers = 4096;

// What may be locked of memory (RLIMIT_MEMLOCK).
struct MemlockLimit {
  bool none = false;
  std::optional<int64_t> kib;  // nullopt: none, or the system does not tell

  // The limit of this process, as it is now. A process with CAP_IPC_LOCK has none.
  static MemlockLimit Ask();
};

// `error_number`: of io_uring_setup.
std::string WhyNoIoUring(int error_number);
// `error_number`: of io_setup.
std::string WhyNoLibaio(int error_number);
// `error_number`: of registering `refused_bytes` of the `wanted_bytes` of buffers with io_uring.
std::string WhyNotRegistered(int error_number, int64_t refused_bytes, int64_t wanted_bytes,
                             const MemlockLimit& limit = MemlockLimit::Ask());

}  // namespace forebay
