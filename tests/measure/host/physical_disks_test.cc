#include "forebay/measure/host/physical_disks.h"

#include <filesystem>

#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

class PhysicalDisksTest : public testing::Test {
 protected:
  // A folder with its queue, and those of its partitions.
  std::string MakeDisk(const std::string& name, bool with_partition = false) {
    const std::string disk = folder_.Path(name);
    EXPECT_TRUE(MakeDirectories(disk + "/queue").ok());
    if (with_partition) {
      EXPECT_TRUE(MakeDirectories(disk + "/" + name + "p1").ok());
      EXPECT_TRUE(WriteFileAtomically(disk + "/" + name + "p1/partition", "1\n").ok());
    }
    return disk;
  }
  static void PutOn(const std::string& device, const std::string& part) {
    EXPECT_TRUE(MakeDirectories(device + "/slaves").ok());
    const std::string name = std::filesystem::path(part).filename();
    std::filesystem::create_directory_symlink(part, device + "/slaves/" + name);
  }
  const TemporaryFolder folder_;
};

TEST_F(PhysicalDisksTest, OfAPartitionIsItsDisk) {
  const std::string disk = MakeDisk("nvme0n1", true);
  EXPECT_THAT(PhysicalDisks(disk), ElementsAre(disk));
  EXPECT_THAT(PhysicalDisks(disk + "/nvme0n1p1"), ElementsAre(disk));
  EXPECT_TRUE(PhysicalDisks("").empty());
}

TEST_F(PhysicalDisksTest, OfAVolumeOnRaidAreAllOfIts) {
  const std::string a = MakeDisk("sda", true), b = MakeDisk("sdb");
  const std::string raid = MakeDisk("md0"), volume = MakeDisk("dm-0");
  PutOn(raid, a + "/sdap1");
  PutOn(raid, b);
  PutOn(volume, raid);
  EXPECT_THAT(PhysicalDisks(volume), UnorderedElementsAre(a, b));
  PutOn(volume, b);  // once more
  EXPECT_THAT(PhysicalDisks(volume), UnorderedElementsAre(a, b));
}

TEST_F(PhysicalDisksTest, ACircleEnds) {
  const std::string a = MakeDisk("dm-0"), b = MakeDisk("dm-1");
  PutOn(a, b);
  PutOn(b, a);
  EXPECT_TRUE(PhysicalDisks(a).empty());
}

}  // namespace
}  // namespace forebay
