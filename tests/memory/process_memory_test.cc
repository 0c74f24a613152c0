#include "forebay/memory/process_memory.h"

#include "forebay/memory/host_buffer.h"
#include "forebay/tests/memory/reserved_huge_pages.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

TEST(ProcessMemory, AddsReservedHugePagesToWhatTheKernelCounts) {
  const ProcessMemory memory = ParseProcessMemory(
      "VmPeak:\t  999999 kB\nVmSize:\t  9000 kB\nVmHWM:\t    3000 kB\nVmRSS:\t    1000 "
      "kB\nRssAnon:\t 1 kB\n"
      "HugetlbPages:\t    4096 kB\nThreads:\t7\n");
  EXPECT_EQ(memory.resident_bytes, (1000 + 4096) * 1024);
  EXPECT_EQ(memory.peak_bytes, (3000 + 4096) * 1024);
  EXPECT_EQ(memory.mapped_bytes, 9000 * 1024);
}

TEST(ProcessMemory, IsZeroWhereThereIsNothingToRead) {
  EXPECT_EQ(ParseProcessMemory("").peak_bytes, 0);
}

TEST(ProcessMemory, GrowsByABufferWhateverItsPages) {
  const ReservedHugePages reserved(16);
  for (const PageKind best : {PageKind::kReservedHuge, PageKind::kBase}) {
    MemoryBudget budget(0);
    const int64_t before = ReadProcessMemory().resident_bytes;
    const auto buffer = HostBuffer::Create(&budget, "test", 32 * kMib, {.best_pages = best});
    ASSERT_TRUE(buffer.ok());
    EXPECT_GT(ReadProcessMemory().resident_bytes, before + 30 * kMib);
    EXPECT_GE(ReadProcessMemory().peak_bytes, ReadProcessMemory().resident_bytes - kMib);
  }
}

}  // namespace
}  // namespace forebay
