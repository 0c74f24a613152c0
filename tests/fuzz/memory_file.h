// A file for parsers that read files: in memory, one for the whole run of the fuzzer.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "fmt/format.h"

namespace forebay {

inline void Require(bool condition) {
  if (!condition) std::abort();
}

// Its path, after it has been given `text` for its whole contents.
inline std::string MemoryFile(std::string_view text) {
  static const int fd = ::memfd_create("fuzzed", MFD_CLOEXEC);
  Require(fd >= 0 && ::ftruncate(fd, 0) == 0);
  Require(::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return fmt::format("/proc/self/fd/{}", fd);
}

}  // namespace forebay
