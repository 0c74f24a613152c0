#include "forebay/memory/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>

#include "forebay/base/file.h"

namespace forebay {
namespace {

// Of "VmRSS:     1234 kB".
int64_t FieldBytes(std::string_view status, std::string_view field) {
  const size_t at = status.find(field);
  if (at == std::string_view::npos) return 0;
  const size_t digit = status.find_first_of("0123456789", at);
  if (digit == std::string_view::npos) return 0;
  int64_t kib = 0;
  std::from_chars(status.data() + digit, status.data() + status.size(), kib);
  return kib * 1024;
}

}  // namespace

ProcessMemory ParseProcessMemory(std::string_view status) {
  const int64_t reserved_huge_bytes = FieldBytes(status, "HugetlbPages:");
  return {FieldBytes(status, "VmRSS:") + reserved_huge_bytes,
          FieldBytes(status, "VmHWM:") + reserved_huge_bytes, FieldBytes(status, "VmSize:")};
}

ProcessMemory ReadProcessMemory() {
  // Once per step, so without an allocation.
  const UniqueFd fd(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  char buffer[8192];
  const ssize_t got = fd.valid() ? ::read(fd.get(), buffer, sizeof(buffer)) : 0;
  return ParseProcessMemory({buffer, got > 0 ? static_cast<size_t>(got) : 0});
}

}  // namespace forebay
