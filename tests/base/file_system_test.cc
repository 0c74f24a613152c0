#include "forebay/base/file_system.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

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

TEST(FileSystemOf, OfWhatIsClosedIsUnknown) {
  EXPECT_EQ(FileSystemOf(-1), "");
}

}  // namespace
}  // namespace forebay
