// What kind of pages memory got, counted in bytes, and the line that tells people. Disk transfers
// care: in 4 KiB pages one of 1 MiB has 256 pieces, more than many drives take at once, so that it
// is split and costs several times the CPU.
#pragma once

#include <cstdint>
#include <string>

namespace forebay {

inline constexpr int64_t kBasePageBytes = 4096;
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Worst to best.
enum class PageKind : uint8_t {
  kBase,             // 4 KiB
  kTransparentHuge,  // 2 MiB, which the kernel puts together when it can
  kReservedHuge,     // 2 MiB, set aside by the administrator (vm.nr_hugepages)
};

struct PageTally {
  int64_t reserved_huge_bytes = 0;
  int64_t transparent_huge_bytes = 0;
  int64_t base_bytes = 0;
  int64_t missed_bytes = 0;   // part of base_bytes: whole 2 MiB that should have been huge pages
  std::string missed_reason;  // why, and what to do; of the first miss when tallies are added
  std::string note;           // what else was asked for and not had: NUMA node, pinning

  void Add(const PageTally& other);
  // The texts stay.
  void Subtract(const PageTally& other);
};

// "pages: 640 MiB in transparent huge pages of 2 MiB, 3.00 MiB in pages of 4 KiB", with the reason
// and the fix where huge pages were missed.
std::string DescribePages(const PageTally& pages);

}  // namespace forebay
