#include "forebay/measure/file_system.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

TEST(FileSystemOfMagic, NamesWhatStatfsNumbers) {
  EXPECT_EQ(FileSystemOfMagic(0x6969), "nfs");
  EXPECT_EQ(FileSystemOfMagic(0x65735546), "fuse");
  EXPECT_EQ(FileSystemOfMagic(0x794C7630), "overlay");
  EXPECT_EQ(FileSystemOfMagic(0x01021994), "tmpfs");
  // As a kernel with 32 bits has it: below 0.
  EXPECT_EQ(FileSystemOfMagic(static_cast<int32_t>(0xFE534D42)), "smb3");
  EXPECT_EQ(FileSystemOfMagic(12345), "");
}

TEST(FileSystemAt, OfWhatIsNotThereIsUnknown) {
  EXPECT_EQ(FileSystemAt("/there/is/no/such/folder"), "");
}

TEST(WhatStandsBetween, IsSaidOfWhatIsNoDisk) {
  for (const char* fs : {"nfs", "nfs4", "cifs", "smb3"}) {
    EXPECT_THAT(WhatStandsBetween(fs), HasSubstr(std::string(fs) + " is reached over the network"));
  }
  for (const char* fs : {"fuse", "fuse.sshfs", "fuseblk"}) {
    EXPECT_THAT(WhatStandsBetween(fs), HasSubstr(std::string(fs) + " is served by a program"));
  }
  EXPECT_THAT(WhatStandsBetween("overlay"), HasSubstr("container"));
  EXPECT_THAT(WhatStandsBetween("virtiofs"), HasSubstr("host"));
}

TEST(WhatStandsBetween, IsNothingOnADisk) {
  for (const char* fs : {"ext4", "xfs", "btrfs", "f2fs", ""}) {
    EXPECT_EQ(WhatStandsBetween(fs), "") << fs;
  }
}

}  // namespace
}  // namespace forebay
