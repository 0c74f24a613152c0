#include "forebay/measure/host/file_system.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

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
