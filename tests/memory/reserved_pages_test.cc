// What memory does with the huge pages that the administrator set aside. These tests count the
// pages of the whole system, so that no other program of the tests may run beside this one.
#include <linux/filter.h>
#include <linux/mman.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/page_mapping.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/memory/mapped_pages.h"
#include "forebay/tests/memory/reserved_huge_pages.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// A test that takes all that are free leaves a machine alone that has more.
constexpr int64_t kMostFree = 128;

TEST(ReservedPages, AreTakenForAllButTheEnd) {
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

TEST(ReservedPages, ThatAreTooFewAreTakenAndTransparentOnesBehindThem) {
  const ReservedHugePages reserved(2);
  const int64_t num_free = ReservedHugePages::NumFree();
  if (num_free < 2) GTEST_SKIP() << "no huge pages can be reserved here (needs root)";
  if (num_free > kMostFree) GTEST_SKIP() << "too many are reserved to take them all";
  {
    const Mapped mapped((num_free + 2) * 2 * kMib + 4096, PageKind::kReservedHuge);
    const PageTally& pages = mapped->pages;
    EXPECT_EQ(pages.reserved_huge_bytes, num_free * 2 * kMib);
    EXPECT_EQ(ReservedHugePages::NumFree(), 0);
    EXPECT_EQ(pages.transparent_huge_bytes + pages.missed_bytes, 4 * kMib);
    EXPECT_EQ(pages.reserved_huge_bytes + pages.transparent_huge_bytes + pages.base_bytes,
              mapped->size_bytes);
    EXPECT_EQ(HugeBytesBySmaps(mapped.body()),
              pages.reserved_huge_bytes + pages.transparent_huge_bytes);
    EXPECT_TRUE(IsZeroed(mapped.bytes()));
    EXPECT_LT(FaultsOfTouching(mapped.bytes()), 16);
    EXPECT_EQ(InChild([&] {
                std::vector<unsigned char> present(mapped.bytes().size() / kBasePageBytes);
                return ::mincore(mapped->data, mapped.bytes().size(), present.data()) == 0 ? "yes"
                                                                                           : "no";
              }),
              "no")
        << "inherited by a child";
  }
  EXPECT_EQ(ReservedHugePages::NumFree(), num_free) << "they were not given back";
}

TEST(ReservedPages, AreLeftAloneByWhatIsSmall) {
  const ReservedHugePages reserved(2);
  const int64_t num_free = ReservedHugePages::NumFree();
  if (num_free < 2) GTEST_SKIP() << "no huge pages can be reserved here (needs root)";
  const Mapped mapped(2 * kMib - 4096, PageKind::kReservedHuge);
  EXPECT_EQ(mapped->pages.base_bytes, 2 * kMib - 4096);
  EXPECT_EQ(mapped->pages.missed_bytes, 0);
  EXPECT_EQ(ReservedHugePages::NumFree(), num_free);
}

// From here on mmap gives this process no reserved huge pages, though some are free: as a limit of
// the control group does. False where the system has no such filters.
bool RefuseReservedPages() {
  constexpr uint32_t kFlags = offsetof(seccomp_data, args) + 3 * sizeof(uint64_t);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_HUGETLB, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

TEST(ReservedPages, ThatAreFreeAndRefusedAreDoneWithout) {
  const ReservedHugePages reserved(2);
  if (ReservedHugePages::NumFree() < 1) {
    GTEST_SKIP() << "no huge pages can be reserved here (needs root)";
  }
  const std::string said = InChild([]() -> std::string {
    if (!RefuseReservedPages()) return "skip";
    const Mapped mapped(5 * kMib, PageKind::kReservedHuge);
    const PageTally& pages = mapped->pages;
    return fmt::format("reserved {}, transparent or missed {}, in all {}, zeroed {}",
                       pages.reserved_huge_bytes, pages.transparent_huge_bytes + pages.missed_bytes,
                       pages.transparent_huge_bytes + pages.base_bytes, IsZeroed(mapped.bytes()));
  });
  if (said == "skip") GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(said, fmt::format("reserved 0, transparent or missed {}, in all {}, zeroed true",
                              4 * kMib, 5 * kMib));
}

TEST(ReservedPages, NameABufferThatIsMostlyInThem) {
  const ReservedHugePages reserved(2);
  const int64_t num_free = ReservedHugePages::NumFree();
  if (num_free < 2) GTEST_SKIP() << "no huge pages can be reserved here (needs root)";
  if (num_free > kMostFree) GTEST_SKIP() << "too many are reserved to take them all";
  MemoryBudget budget(0);
  {
    const auto most = HostBuffer::Create(&budget, "test", (num_free + 1) * 2 * kMib + 4096);
    ASSERT_TRUE(most.ok()) << most.status();
    EXPECT_EQ(most->pages().reserved_huge_bytes, num_free * 2 * kMib);
    EXPECT_EQ(most->page_kind(), PageKind::kReservedHuge);
  }
  const auto few = HostBuffer::Create(&budget, "test", (3 * num_free + 2) * 2 * kMib);
  ASSERT_TRUE(few.ok()) << few.status();
  const PageTally& pages = few->pages();
  EXPECT_EQ(pages.reserved_huge_bytes, num_free * 2 * kMib);
  const bool all_huge = pages.missed_bytes == 0;
  if (!all_huge && pages.transparent_huge_bytes > 0) GTEST_SKIP() << "the kernel gave some of both";
  EXPECT_EQ(few->page_kind(), all_huge ? PageKind::kTransparentHuge : PageKind::kBase);
}

}  // namespace
}  // namespace forebay
