#include "forebay/base/process/cgroups.h"

#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class CpuQuotaTest : public testing::Test {
 protected:
  void Write(const std::string& path, std::string_view text) {
    const std::string file = root_.path() + path;
    ASSERT_TRUE(MakeDirectories(file.substr(0, file.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(file, text).ok());
  }
  TemporaryFolder root_;
};

TEST_F(CpuQuotaTest, IsTheLeastOfTheNestedGroups) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  EXPECT_EQ(CpuQuota(root_.path()), std::nullopt);
  Write("/sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root_.path()), 1.5);
  Write("/sys/fs/cgroup/outer/inner/cpu.max", "40000 80000\n");
  EXPECT_EQ(CpuQuota(root_.path()), 0.5);
}

TEST_F(CpuQuotaTest, OfAContainerStandsAtTheMountPoint) {
  Write("/proc/self/cgroup", "0::/a/group/that/only/the/host/has\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(CpuQuota(root_.path()), 2.0);
}

TEST_F(CpuQuotaTest, OfVersionOneIsThatOfTheControllerCpuAlone) {
  Write("/proc/self/cgroup", "5:cpuset:/job\n4:cpu,cpuacct:/job\n");
  Write("/sys/fs/cgroup/cpuset/job/cpu.cfs_quota_us", "1\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CpuQuota(root_.path()), std::nullopt);
  Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(CpuQuota(root_.path()), 2.5);
}

}  // namespace
}  // namespace forebay
