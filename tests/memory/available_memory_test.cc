#include "forebay/memory/available_memory.h"

#include <unistd.h>

#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A small copy of the files of /proc and /sys that count.
class FakeRoot : public testing::Test {
 protected:
  void Write(const std::string& path, std::string_view text) {
    const std::string file = root_.path() + path;
    ASSERT_TRUE(MakeDirectories(file.substr(0, file.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(file, text).ok());
  }
  void SetUp() override {
    Write("/proc/meminfo", "MemTotal: 8192000 kB\nMemAvailable:    4194304 kB\n");
  }
  TemporaryFolder root_;
};

TEST_F(FakeRoot, WithoutCgroupsMemAvailableCounts) {
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 4096 * kMiB);
}

TEST_F(FakeRoot, TheTightestOfTheNestedGroupsCounts) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  Write("/sys/fs/cgroup/outer/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/outer/memory.current", "536870912\n");
  Write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 512 * kMiB);
}

TEST_F(FakeRoot, PageCacheThatCanBeDroppedIsRoom) {
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/job/memory.current", "1073741824\n");
  Write("/sys/fs/cgroup/job/memory.stat", "anon 0\ninactive_file 268435456\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 256 * kMiB);
}

TEST_F(FakeRoot, VersionOneGroupsCountToo) {
  Write("/proc/self/cgroup", "5:cpu:/a\n4:memory:/job\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 1024 * kMiB);
}

TEST_F(FakeRoot, AVersionOneGroupWithoutLimitDoesNotCount) {
  Write("/proc/self/cgroup", "4:memory:/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 4096 * kMiB);
}

TEST_F(FakeRoot, ReservedHugePagesComeOnTopAsMemAvailableLeavesThemOut) {
  const std::string pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  Write(pages + "free_hugepages", "100\n");
  Write(pages + "resv_hugepages", "30\n");
  EXPECT_EQ(FreeReservedHugeBytes(root_.path()), 140 * kMiB) << "30 are promised to others";
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), (4096 + 140) * kMiB);
  EXPECT_EQ(OrdinaryMemoryBytes(root_.path()), 4096 * kMiB);
}

TEST_F(FakeRoot, AGroupsLimitOfMemoryDoesNotCountReservedHugePages) {
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/job/memory.current", "0\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), (1024 + 200) * kMiB);
  // Unless the mount says so.
  Write("/proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,memory_hugetlb_accounting 0 0\n");
  EXPECT_EQ(AvailableMemoryBytes(root_.path()), 1024 * kMiB);
  EXPECT_EQ(OrdinaryMemoryBytes(root_.path()), 1024 * kMiB);
}

TEST_F(FakeRoot, AGroupsLimitOfHugePagesCounts) {
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/hugetlb.2MB.max", "20971520\n");
  Write("/sys/fs/cgroup/job/hugetlb.2MB.current", "4194304\n");
  Write("/sys/fs/cgroup/job/memory.stat", "inactive_file 268435456\n");
  EXPECT_EQ(FreeReservedHugeBytes(root_.path()), 16 * kMiB);
  Write("/proc/self/cgroup", "7:hugetlb:/old\n");
  Write("/sys/fs/cgroup/hugetlb/old/hugetlb.2MB.limit_in_bytes", "8388608\n");
  Write("/sys/fs/cgroup/hugetlb/old/hugetlb.2MB.usage_in_bytes", "0\n");
  EXPECT_EQ(FreeReservedHugeBytes(root_.path()), 8 * kMiB);
}

TEST_F(FakeRoot, WithoutReservedHugePagesNoneAreFree) {
  EXPECT_EQ(FreeReservedHugeBytes(root_.path()), 0);
}

TEST(AvailableMemory, OfThisMachineIsLessThanItHas) {
  const int64_t has = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), has);
}

}  // namespace
}  // namespace forebay
