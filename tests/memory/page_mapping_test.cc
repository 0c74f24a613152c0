#include "forebay/memory/page_mapping.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <vector>

#include "fmt/format.h"
#include "forebay/memory/process_memory.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/memory/mapped_pages.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

TEST(PageMapping, SaysOfTransparentHugePagesWhatTheKernelSays) {
  const Mapped mapped(9 * kMib, PageKind::kTransparentHuge);
  const std::optional<int64_t> told = HugeBytesBySmaps(mapped.body());
  if (!told.has_value()) GTEST_SKIP() << "/proc/self/smaps cannot be read";
  EXPECT_EQ(mapped->huge_bytes, 8 * kMib);
  EXPECT_EQ(mapped->pages.transparent_huge_bytes, *told);
  EXPECT_EQ(mapped->pages.missed_bytes, 8 * kMib - *told);
  EXPECT_EQ(mapped->pages.base_bytes, 9 * kMib - *told);
  EXPECT_EQ(mapped->pages.missed_reason.empty(), *told == 8 * kMib);
}

TEST(PageMapping, GetsTransparentHugePagesWhereAnyoneDoes) {
  // Asks for them itself, three times the size, so that an aligned part is large enough.
  const size_t size = 24 * kMib;
  void* const own =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(own, MAP_FAILED);
  ::madvise(own, size, MADV_HUGEPAGE);
  const std::span<std::byte> own_bytes(static_cast<std::byte*>(own), size);
  FaultsOfTouching(own_bytes);
  const int64_t had = HugeBytesBySmaps(own_bytes).value_or(0);
  ::munmap(own, size);
  if (had < 8 * kMib) GTEST_SKIP() << "no transparent huge pages are to be had here";
  const Mapped mapped(8 * kMib, PageKind::kTransparentHuge);
  EXPECT_GT(mapped->pages.transparent_huge_bytes, 0);
}

TEST(PageMapping, TheTwoWaysToAskTheKernelAgree) {
  const Mapped huge(8 * kMib, PageKind::kTransparentHuge);
  const Mapped base(8 * kMib, PageKind::kBase);
  const std::optional<int64_t> by_scan = HugeBytesByScan(huge.bytes());
  if (!by_scan.has_value()) GTEST_SKIP() << "this kernel cannot scan page maps (Linux 6.7 can)";
  EXPECT_EQ(by_scan, HugeBytesBySmaps(huge.bytes()));
  EXPECT_EQ(HugeBytesByScan(base.bytes()), 0);
  EXPECT_EQ(HugeBytesBySmaps(base.bytes()), 0);
}

TEST(PageMapping, WithoutTransparentHugePagesHasBasePagesAndSaysWhy) {
  const std::string said = InChild([]() -> std::string {
    if (::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return "skip";
    const Mapped mapped(5 * kMib, PageKind::kTransparentHuge);
    return fmt::format("huge {} missed {} zeroed {}: {}", mapped->pages.transparent_huge_bytes,
                       mapped->pages.missed_bytes / kMib, IsZeroed(mapped.bytes()),
                       mapped->pages.missed_reason);
  });
  if (said == "skip") GTEST_SKIP() << "prctl PR_SET_THP_DISABLE is refused here";
  EXPECT_THAT(said, HasSubstr("huge 0 missed 4 zeroed true"));
  EXPECT_THAT(said, HasSubstr("switched off for this process"));
}

TEST(PageMapping, NamesTheObstacleAndTheFix) {
  EXPECT_THAT(TransparentHugeObstacle("always madvise [never]\n", false),
              HasSubstr("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"));
  EXPECT_THAT(TransparentHugeObstacle("", false), HasSubstr("kernel has no"));
  EXPECT_THAT(TransparentHugeObstacle("always [madvise] never\n", false),
              HasSubstr("compact_memory"));
  EXPECT_THAT(TransparentHugeObstacle("always [madvise] never\n", true), HasSubstr("prctl"));
}

TEST(PageMapping, FaultsAtNoTouch) {
  for (const PageKind best : {PageKind::kBase, PageKind::kTransparentHuge}) {
    const Mapped mapped(16 * kMib + 4096, best);
    EXPECT_LT(FaultsOfTouching(mapped.bytes()), 16);
  }
}

TEST(PageMapping, IsPopulatedWholeByManyThreads) {
  // Large enough for the threads, and no multiple of their shares.
  const Mapped mapped(261 * kMib + 4096, PageKind::kTransparentHuge);
  EXPECT_LT(FaultsOfTouching(mapped.bytes()), 64);
}

TEST(PageMapping, TakesNoMoreThanItWasAskedFor) {
  // Rounded up to huge pages these would take 32 MiB more.
  const ProcessMemory before = ReadProcessMemory();
  std::vector<std::unique_ptr<Mapped>> mapped;
  int64_t asked_bytes = 0;
  for (int i = 0; i < 16; ++i) {
    mapped.push_back(std::make_unique<Mapped>(2 * kMib + 4096, PageKind::kReservedHuge));
    asked_bytes += 2 * kMib + 4096;
  }
  const int64_t taken_bytes = ReadProcessMemory().resident_bytes - before.resident_bytes;
  EXPECT_LT(taken_bytes, asked_bytes + 4 * kMib);
}

TEST(PageMapping, IsNotInheritedByChildren) {
  for (const PageKind best : {PageKind::kBase, PageKind::kTransparentHuge}) {
    const Mapped mapped(2 * kMib + 4096, best);
    // mincore tells without the risk of a crash: ENOMEM where nothing is mapped.
    std::vector<unsigned char> present(mapped.bytes().size() / kBasePageBytes);
    const auto is_mapped = [&] {
      return ::mincore(mapped->data, mapped.bytes().size(), present.data()) == 0;
    };
    EXPECT_TRUE(is_mapped());
    EXPECT_EQ(InChild([&] { return is_mapped() ? "mapped" : "not mapped"; }), "not mapped");
  }
}

}  // namespace
}  // namespace forebay
