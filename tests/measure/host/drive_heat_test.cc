#include "forebay/measure/host/drive_heat.h"

#include <optional>
#include <string>

#include "forebay/base/file.h"
#include "forebay/measure/runs/bench_session.h"
#include "forebay/measure/runs/run_job.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A part of /sys with one sensor.
class DriveHeatTest : public testing::Test {
 protected:
  void Put(const std::string& sensor, const std::string& name, const std::string& value) {
    ASSERT_TRUE(MakeDirectories(folder_.Path(sensor)).ok());
    ASSERT_TRUE(WriteFileAtomically(JoinPath(folder_.Path(sensor), name), value).ok());
  }
  std::string Disk(const std::string& path) {
    EXPECT_TRUE(MakeDirectories(folder_.Path(path)).ok());
    return folder_.Path(path);
  }
  const TemporaryFolder folder_;
};

TEST_F(DriveHeatTest, OfAnNvmeDriveIsThatOfItsController) {
  Put("nvme0/hwmon3", "temp1_input", "41850\n");
  Put("nvme0/hwmon3", "temp1_max", "83850\n");
  for (const char* path : {"nvme0/nvme0n1", "nvme0/nvme0n1/nvme0n1p1"}) {
    EXPECT_EQ(HeatOf(Disk(path)), (DriveHeat{41.85, 83.85})) << path;
  }
}

TEST_F(DriveHeatTest, OfASataDriveIsInAFolderOfItsDevice) {
  Put("0:0:0:0/hwmon/hwmon0", "temp1_input", "36000\n");
  EXPECT_EQ(HeatOf(Disk("0:0:0:0/block/sda/sda1")), (DriveHeat{36, std::nullopt}));
}

TEST_F(DriveHeatTest, HasTheCriticalLimitWhereThereIsNoOther) {
  Put("nvme0/hwmon3", "temp1_input", "41850\n");
  Put("nvme0/hwmon3", "temp1_crit", "89850\n");
  EXPECT_EQ(HeatOf(Disk("nvme0/nvme0n1")), (DriveHeat{41.85, 89.85}));
}

TEST_F(DriveHeatTest, IsUnknownWithoutASensorThatAnswers) {
  EXPECT_EQ(HeatOf(Disk("virtio1/block/vda")), std::nullopt);
  EXPECT_EQ(HeatOf(""), std::nullopt);
  EXPECT_EQ(HeatOf("/there/is/none"), std::nullopt);
  Put("nvme0/hwmon3", "temp1_input", "");
  EXPECT_EQ(HeatOf(Disk("nvme0/nvme0n1")), std::nullopt);
}

TEST_F(DriveHeatTest, IsNotThatOfTheRestOfTheMachine) {
  Put("hwmon1", "temp1_input", "90000\n");
  EXPECT_EQ(HeatOf(Disk("pci0000:00/0000:00:04.0/virtio1/block/vda")), std::nullopt);
}

TEST(DriveHeat, IsTooMuchFromTheDrivesOwnLimitOn) {
  EXPECT_FALSE((DriveHeat{99, std::nullopt}).too_warm());
  EXPECT_FALSE((DriveHeat{79.9, 80}).too_warm());
  EXPECT_TRUE((DriveHeat{80, 80}).too_warm());
  EXPECT_EQ(HeatWarning({79.9, 80}, "nvme0n1"), "");
  EXPECT_THAT(HeatWarning({84, 80}, "nvme0n1"),
              HasSubstr("nvme0n1 is at 84 degrees C and slows down from 80 on"));
}

TEST_F(DriveHeatTest, IsTooMuchWhereTheDriveItselfSaysSo) {
  Put("nvme0/hwmon3", "temp1_input", "70000\n");
  Put("nvme0/hwmon3", "temp1_max", "80000\n");
  Put("nvme0/hwmon3", "temp1_alarm", "0\n");
  EXPECT_FALSE(HeatOf(Disk("nvme0/nvme0n1"))->too_warm());
  Put("nvme0/hwmon3", "temp1_alarm", "1\n");
  const std::optional<DriveHeat> heat = HeatOf(Disk("nvme0/nvme0n1"));
  EXPECT_TRUE(heat->too_warm());
  EXPECT_THAT(HeatWarning(*heat, "nvme0n1"), HasSubstr("is at 70 degrees C and says itself"));
}

TEST_F(DriveHeatTest, IsWarnedOfOnceBeforeOrAfterwards) {
  Put("nvme0/hwmon3", "temp1_input", "84000\n");
  Put("nvme0/hwmon3", "temp1_max", "80000\n");
  BenchReport report;
  report.devices.push_back({.path = "/x", .fs = "ext4", .device = "nvme0n1"});
  StorageInfo& storage = report.devices[0];
  NoteHeat(report);
  EXPECT_EQ(storage.heat_afterwards, std::nullopt);  // nothing was known before either
  storage.device_folder = Disk("nvme0/nvme0n1");
  storage.heat = DriveHeat{40, 80};
  EXPECT_THAT(StorageWarnings(storage), IsEmpty());
  NoteHeat(report);
  EXPECT_EQ(storage.heat_afterwards, (DriveHeat{84, 80}));
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("/x: nvme0n1 is at 84 degrees C")));
  report.warnings.clear();
  storage.heat = DriveHeat{81, 80};
  EXPECT_THAT(StorageWarnings(storage), ElementsAre(HasSubstr("81 degrees C")));
  NoteHeat(report);
  EXPECT_THAT(report.warnings, IsEmpty());
}

}  // namespace
}  // namespace forebay
