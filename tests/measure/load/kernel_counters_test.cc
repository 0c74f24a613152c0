#include "forebay/measure/load/kernel_counters.h"

#include <vector>

#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(ParseIoAccount, TakesWhatReachedTheStorage) {
  const auto account = ParseIoAccount(
      "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\n"
      "cancelled_write_bytes: 7\n");
  ASSERT_TRUE(account.has_value());
  EXPECT_EQ(account->read_bytes, 4096);
  EXPECT_EQ(account->write_bytes, 8192);
}

TEST(ParseIoAccount, IsNothingWithoutTheLines) {
  EXPECT_FALSE(ParseIoAccount("").has_value());
  EXPECT_FALSE(ParseIoAccount("rchar: 1\nread_bytes: 4096\n").has_value());
}

TEST(ParseDiskAccount, CountsSectorsOf512) {
  const auto account = ParseDiskAccount(
      "  100       20     4096      7      300       40     8192        9        0       10       "
      "11\n");
  ASSERT_TRUE(account.has_value());
  EXPECT_EQ(account->read_ios, 100);
  EXPECT_EQ(account->read_merges, 20);
  EXPECT_EQ(account->read_bytes, 4096 * 512);
  EXPECT_EQ(account->write_ios, 300);
  EXPECT_EQ(account->write_merges, 40);
  EXPECT_EQ(account->write_bytes, 8192 * 512);
}

TEST(ParseDiskAccount, IsNothingWhenItIsTooShort) {
  EXPECT_FALSE(ParseDiskAccount("1 2 3").has_value());
  EXPECT_FALSE(ParseDiskAccount("").has_value());
}

TEST(DiskAccountOf, ThereIsNoneForADeviceThatIsNoDisk) {
  EXPECT_FALSE(DiskAccountOf(0).has_value());
}

TEST(ProcessCpuSeconds, GrowsWithWork) {
  const double before = ProcessCpuSeconds();
  volatile double sum = 0;
  while (ProcessCpuSeconds() < before + 0.01) sum = sum + 1;
  EXPECT_GT(sum, 0);
}

}  // namespace
}  // namespace forebay
