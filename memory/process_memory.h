// How much memory this process takes.
#pragma once

#include <cstdint>
#include <string_view>

namespace forebay {

// In bytes: resident now, and the most it ever was. Reserved huge pages count too, which the
// kernel's own figures (VmRSS, VmHWM) leave out; it remembers no peak of those, so the most is that
// of the others plus what is held of them now.
struct ProcessMemory {
  int64_t resident_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t mapped_bytes = 0;  // used or not: what 'ulimit -v' counts
};
// Zeros when /proc cannot be read.
ProcessMemory ReadProcessMemory();
// From the text of /proc/self/status.
ProcessMemory ParseProcessMemory(std::string_view status);

}  // namespace forebay
