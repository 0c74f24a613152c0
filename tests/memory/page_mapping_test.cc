#include "forebay/memory/page_mapping.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "fmt/format.h"
#include "forebay/memory/process_memory.h"
#include "forebay/tests/memory/in_child.h"
#include "forebay/tests/memory/reserved_huge_pages.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kMib = int64_t{1} << 20;

// Unmaps at its end.
class Mapped {
 public:
  Mapped(int64_t size_bytes, PageKind best) : mapping_(MapPages(size_bytes, {best, -1})) {
    EXPECT_NE(mapping_.data, nullptr) << mapping_.error_number;
  }
  ~Mapped() {
    if (mapping_.data != nullptr) UnmapPages(mapping_.data, mapping_.size_bytes);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  const PageMapping* operator->() const { return &mapping_; }
  std::span<std::byte> bytes() const {
    return {mapping_.data, static_cast<size_t>(mapping_.size_bytes)};
  }
  std::span<std::byte> body() const {
    return bytes().first(static_cast<size_t>(mapping_.huge_bytes));
  }

 private:
  PageMapping mapping_;
};

bool IsZeroed(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

int64_t PageFaults() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// What a first write to each page costs.
// Not instrumented: a sanitizer's shadow of these bytes faults too.
__attribute__((no_sanitize("address", "thread"))) void Touch(volatile std::byte* data,
                                                             int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBasePageBytes) data[at] = std::byte{1};
}

int64_t FaultsOfTouching(std::span<std::byte> bytes) {
  const int64_t before = PageFaults();
  Touch(bytes.data(), static_cast<int64_t>(bytes.size()));
  return PageFaults() - before;
}

TEST(PageMapping, TakesReservedHugePagesForAllButTheEnd) {
  const ReservedHugePages reserved(4);
  if (ReservedHugePages::NumFree() < 4) {
    GTEST_SKIP() << "no 4 huge pages can be reserved here (needs root and unfragmented memory)";
  }
  const int64_t free_before = ReservedHugePages::NumFree();
  {
    const Mapped mapped(5 * kMib + 4096, PageKind::kReservedHuge);
    EXPECT_EQ(mapped->pages.reserved_huge_bytes, 4 * kMib);
    EXPECT_EQ(mapped->pages.base_bytes, kMib + 4096);
    EXPECT_EQ(mapped->pages.missed_bytes, 0);
    EXPECT_EQ(ReservedHugePages::NumFree(), free_before - 2);
    EXPECT_EQ(HugeBytesBySmaps(mapped.bytes()), 4 * kMib);
    EXPECT_TRUE(IsZeroed(mapped.bytes()));
    EXPECT_LT(FaultsOfTouching(mapped.bytes()), 16);
  }
  EXPECT_EQ(ReservedHugePages::NumFree(), free_before) << "they were not given back";
}

TEST(PageMapping, WithTooFewReservedPagesTakesTransparentOnes) {
  const ReservedHugePages reserved(1);
  const int64_t num_free = ReservedHugePages::NumFree();
  if (num_free < 1) GTEST_SKIP() << "no huge page can be reserved here (needs root)";
  const Mapped mapped((num_free + 1) * 2 * kMib, PageKind::kReservedHuge);
  EXPECT_EQ(mapped->pages.reserved_huge_bytes, 0);
  EXPECT_EQ(ReservedHugePages::NumFree(), num_free) << "a reserved page was kept for nothing";
}

TEST(PageMapping, LeavesReservedPagesAloneWhenSmall) {
  const ReservedHugePages reserved(2);
  const int64_t num_free = ReservedHugePages::NumFree();
  if (num_free < 2) GTEST_SKIP() << "no huge pages can be reserved here (needs root)";
  const Mapped mapped(2 * kMib - 4096, PageKind::kReservedHuge);
  EXPECT_EQ(mapped->pages.base_bytes, 2 * kMib - 4096);
  EXPECT_EQ(mapped->pages.missed_bytes, 0);
  EXPECT_EQ(ReservedHugePages::NumFree(), num_free);
}

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
