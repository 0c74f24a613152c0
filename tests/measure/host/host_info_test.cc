#include "forebay/measure/host/host_info.h"

#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(ChosenWord, IsTheOneInBrackets) {
  EXPECT_EQ(ChosenWord("always [madvise] never"), "madvise");
  EXPECT_EQ(ChosenWord("none"), "none");
  EXPECT_EQ(ChosenWord(""), "");
}

TEST(ParseMountInfo, ReadsWhatTheKernelWrites) {
  const auto mounts = ParseMountInfo(
      "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
      "36 35 98:0 /sub /mnt/with\\040blank rw,noatime master:1 shared:2 - ext3 /dev/root "
      "rw,errors=continue\n"
      "a line of something else\n");
  ASSERT_EQ(mounts.size(), 2u);
  EXPECT_EQ(mounts[0].fs, "proc");
  EXPECT_EQ(mounts[1].device_number, "98:0");
  EXPECT_EQ(mounts[1].mount_point, "/mnt/with blank");
  EXPECT_EQ(mounts[1].fs, "ext3");
  EXPECT_EQ(mounts[1].options, "rw,noatime,errors=continue");
}

TEST(AskHost, KnowsThisMachine) {
  const HostInfo host = AskHost();
  EXPECT_NE(host.kernel, "");
  EXPECT_GE(host.num_cores, 1);
  EXPECT_GT(host.memory_bytes, 0);
}

TEST(AskStorage, KnowsTheFileSystemOfAFolder) {
  const TemporaryFolder folder;
  const auto storage = AskStorage(folder.path());
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ(storage->path, folder.path());
  EXPECT_NE(storage->fs, "");
  EXPECT_GT(storage->total_bytes, 0);
}

TEST(AskStorage, ProcIsProc) {
  // Nothing can be made there, which shows before anything is measured.
  const std::string message(AskStorage("/proc").status().message());
  EXPECT_NE(message.find("choose a folder on a disk"), std::string::npos) << message;
  EXPECT_FALSE(AskStorage("/there/is/no/such/folder").ok());
}

TEST(LongestRequestBytes, IsTheDisksSettingWhereItIsKnown) {
  EXPECT_EQ(LongestRequestBytes({.queue = {{"max_sectors_kb", "1280"}}}), 1280 << 10);
  EXPECT_EQ(LongestRequestBytes({.queue = {{"max_sectors_kb", "many"}}}), 0);
  EXPECT_EQ(LongestRequestBytes({}), 0);
}

TEST(PcieLink, IsDegradedWhenTheDeviceCouldDoMore) {
  const PcieLink good = {"16.0 GT/s PCIe", 4, "16.0 GT/s PCIe", 4};
  EXPECT_FALSE(good.degraded());
  const PcieLink narrow = {"16.0 GT/s PCIe", 2, "16.0 GT/s PCIe", 4};
  EXPECT_TRUE(narrow.degraded());
  EXPECT_FALSE(PcieLink{}.degraded());
}

}  // namespace
}  // namespace forebay
