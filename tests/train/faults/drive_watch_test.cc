// A drive that becomes too warm while a run trains on it.
#include "forebay/train/run/drive_watch.h"

#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/file.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The folder of a disk in /sys/devices, with a sensor.
class WarmDrive {
 public:
  explicit WarmDrive(double celsius) { Set(celsius); }
  void SetAlarm(bool alarm) const { Put("temp1_alarm", alarm ? "1\n" : "0\n"); }
  void ForgetLimit() const { std::filesystem::remove(folder_.Path("nvme0/hwmon1/temp1_max")); }
  void Set(double celsius) const {
    Put("temp1_input", fmt::format("{:.0f}\n", celsius * 1000));
    Put("temp1_max", "80000\n");
  }
  std::string folder() const { return folder_.Path("nvme0/nvme0n1"); }

 private:
  void Put(const std::string& name, const std::string& value) const {
    const std::string sensor = folder_.Path("nvme0/hwmon1");
    ASSERT_TRUE(MakeDirectories(sensor).ok() && MakeDirectories(folder()).ok());
    ASSERT_TRUE(WriteFileAtomically(JoinPath(sensor, name), value).ok());
  }
  const TemporaryFolder folder_;
};

std::vector<std::string> LinesOf(DriveWatch& watch) {
  std::vector<std::string> lines;
  watch.AfterStep([&](const std::string& line) { lines.push_back(line); });
  return lines;
}

TEST(DriveWatch, SaysOnceThatADriveIsTooWarmAndOnceThatItIsNot) {
  const WarmDrive drive(60);
  DriveWatch watch({drive.folder(), "/sys/devices/there/is/none"}, /*look_every_s=*/0);
  EXPECT_THAT(LinesOf(watch), IsEmpty());
  drive.Set(81);
  EXPECT_THAT(LinesOf(watch),
              ElementsAre(AllOf(HasSubstr("nvme0n1 is at 81 degrees C and slows down from 80 on"),
                                HasSubstr("heat sink"))));
  for (const double celsius : {85, 79, 78, 80}) {
    drive.Set(celsius);
    EXPECT_THAT(LinesOf(watch), IsEmpty()) << celsius;
  }
  drive.Set(70);
  EXPECT_THAT(LinesOf(watch), ElementsAre(HasSubstr("nvme0n1 is at 70 degrees C again")));
  EXPECT_THAT(LinesOf(watch), IsEmpty());
  drive.Set(80);
  EXPECT_THAT(LinesOf(watch), ElementsAre(HasSubstr("slows down")));
}

TEST(DriveWatch, BelievesADriveThatSaysItselfThatItIsTooWarm) {
  for (const bool has_limit : {true, false}) {
    const WarmDrive drive(60);
    if (!has_limit) drive.ForgetLimit();
    DriveWatch watch({drive.folder()}, /*look_every_s=*/0);
    EXPECT_THAT(LinesOf(watch), IsEmpty());
    drive.SetAlarm(true);
    EXPECT_THAT(LinesOf(watch), ElementsAre(HasSubstr("nvme0n1 is at 60 degrees C and says itself "
                                                      "that this is too warm")));
    EXPECT_THAT(LinesOf(watch), IsEmpty());
    drive.SetAlarm(false);
    EXPECT_THAT(LinesOf(watch), ElementsAre(HasSubstr("nvme0n1 is at 60 degrees C again")));
  }
}

TEST(DriveWatch, LooksSeldom) {
  const WarmDrive drive(60);
  DriveWatch watch({drive.folder()}, /*look_every_s=*/1000);
  EXPECT_THAT(LinesOf(watch), IsEmpty());
  drive.Set(90);
  EXPECT_THAT(LinesOf(watch), IsEmpty());
}

class HeatObserver : public SilentObserver {
 public:
  void OnNote(const std::string& line) override {
    if (line.starts_with("warning: ")) warnings.push_back(line);
  }
  std::vector<std::string> warnings;
};

TEST(DriveWatch, WarnsWhileARunTrainsOnIt) {
  const TemporaryFolder folder(FolderInRam());
  const ToyTask task(folder.path(), /*num_blocks=*/2);
  const WarmDrive drive(95);
  std::vector<std::string> asked_for;
  TrainEnvironment environment;
  environment.disks_of = [&](const std::vector<std::string>& folders) {
    asked_for = folders;
    return std::vector<std::string>{drive.folder()};
  };
  HeatObserver observer;
  const TrainOptions options = task.StripedRun(folder.Path("run"));
  ASSERT_EQ(TrainToy(options, environment, observer), absl::OkStatus());
  EXPECT_EQ(asked_for.size(), 2u);
  for (const std::string& swap : asked_for) EXPECT_THAT(swap, HasSubstr(folder.Path("run")));
  EXPECT_THAT(observer.warnings, ElementsAre(HasSubstr("nvme0n1 is at 95 degrees C")));
  EXPECT_THAT(ReadWholeFile(folder.Path("run/events.log"), 1 << 20).value(),
              HasSubstr("nvme0n1 is at 95 degrees C"));
}

}  // namespace
}  // namespace forebay
