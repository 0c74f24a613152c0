#include "forebay/base/process/cores.h"

#include <sched.h>

#include <string_view>
#include <thread>

#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// The set of cores of the thread that runs this, and the numbers of those in it.
cpu_set_t CoresOfThisThread() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return cores;
}

TEST(Cores, AreThoseThatTheThreadMayRunOn) {
  const cpu_set_t all = CoresOfThisThread();
  EXPECT_EQ(NumUsableCores(), CPU_COUNT(&all));
  // In a thread of its own, which takes its set with it.
  std::thread([&] {
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(NumUsableCores(), 1);
    EXPECT_EQ(DefaultThreads(), 1);
  }).join();
}

TEST(Cores, ThreadsAreWholeCoresOfTheQuota) {
  EXPECT_EQ(ThreadsWithin(std::nullopt, 16), 16);
  EXPECT_EQ(ThreadsWithin(16.0, 16), 16);
  EXPECT_EQ(ThreadsWithin(15.9, 16), 15);
  EXPECT_EQ(ThreadsWithin(0.3, 16), 1);
  EXPECT_EQ(ThreadsWithin(32.0, 16), 16);
}

TEST(Cores, DefaultThreadsHeedTheQuotaOfTheGroups) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& path, std::string_view text) {
    const std::string file = root.path() + path;
    ASSERT_TRUE(MakeDirectories(file.substr(0, file.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(file, text).ok());
  };
  EXPECT_EQ(DefaultThreads(root.path()), NumUsableCores());
  write("/proc/self/cgroup", "4:cpu,cpuacct:/job\n0::/job\n");
  write("/sys/fs/cgroup/job/cpu.max", "100000 100000\n");
  EXPECT_EQ(DefaultThreads(root.path()), 1);
  write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(DefaultThreads(root.path()), NumUsableCores());
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "99000\n");
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(DefaultThreads(root.path()), 1);
}

}  // namespace
}  // namespace forebay
