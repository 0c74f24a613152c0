// The two ways to ask the kernel where huge pages are; neither needs root.
#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "forebay/base/file.h"
#include "forebay/memory/page_mapping.h"

namespace forebay {
namespace {

// From linux/fs.h of Linux 6.7; older headers have none of it.
struct PageRegion {
  uint64_t start, end, categories;
};
struct PageScan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, PageScan);
constexpr uint64_t kPageIsHuge = uint64_t{1} << 6;

uint64_t AddressOf(const std::byte* data) {
  return reinterpret_cast<uint64_t>(data);
}

}  // namespace

std::optional<int64_t> HugeBytesByScan(std::span<const std::byte> memory) {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap.valid()) return std::nullopt;
  PageRegion regions[64];
  PageScan scan = {};
  scan.size = sizeof(scan);
  scan.start = AddressOf(memory.data());
  scan.end = scan.start + memory.size();
  scan.vec = reinterpret_cast<uint64_t>(regions);
  scan.vec_len = std::size(regions);
  scan.category_mask = kPageIsHuge;
  scan.return_mask = kPageIsHuge;
  uint64_t huge_bytes = 0;
  while (scan.start < scan.end) {
    const int found = ::ioctl(pagemap.get(), kPagemapScan, &scan);
    if (found < 0 && errno == EINTR) continue;
    if (found < 0 || scan.walk_end <= scan.start) return std::nullopt;
    for (int i = 0; i < found; ++i) huge_bytes += regions[i].end - regions[i].start;
    scan.start = scan.walk_end;
  }
  return static_cast<int64_t>(huge_bytes);
}

// A mapping that reaches beyond `memory` counts with all of its huge pages, but not for more than
// its part of `memory`: neighbours may have been merged.
std::optional<int64_t> HugeBytesBySmaps(std::span<const std::byte> memory) {
  FILE* const smaps = std::fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) return std::nullopt;
  const uint64_t begin = AddressOf(memory.data());
  const uint64_t end = begin + memory.size();
  int64_t huge_bytes = 0;
  int64_t overlap_bytes = 0;  // of the mapping that the lines are about
  char line[512];
  while (std::fgets(line, sizeof(line), smaps) != nullptr) {
    unsigned long first = 0, last = 0, kib = 0;
    if (std::sscanf(line, "%lx-%lx ", &first, &last) == 2) {
      const uint64_t from = std::max<uint64_t>(first, begin);
      const uint64_t to = std::min<uint64_t>(last, end);
      overlap_bytes = to > from ? static_cast<int64_t>(to - from) : 0;
    } else if (overlap_bytes > 0 && (std::sscanf(line, "AnonHugePages: %lu", &kib) == 1 ||
                                     std::sscanf(line, "Private_Hugetlb: %lu", &kib) == 1)) {
      huge_bytes += std::min<int64_t>(overlap_bytes, static_cast<int64_t>(kib) * 1024);
    }
  }
  std::fclose(smaps);
  return huge_bytes;
}

}  // namespace forebay
