#include "forebay/base/output_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

class OutputFolder : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(OutputFolder, AFolderOfOurOwnIsNotMadeThroughALink) {
  ASSERT_TRUE(MakeDirectories(folder_.Path("elsewhere")).ok());
  ASSERT_EQ(::symlink(folder_.Path("elsewhere").c_str(), folder_.Path("link").c_str()), 0);
  const absl::Status status = MakeOwnDirectory(folder_.Path("link"));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("'" + folder_.Path("link") + "' is a symbolic link"));
  EXPECT_TRUE(MakeOwnDirectory(folder_.Path("link/own")).ok());
  EXPECT_TRUE(MakeOwnDirectory(folder_.Path("elsewhere")).ok());
}

TEST_F(OutputFolder, WhetherAFolderCanBeWrittenIsKnownBeforeItIsMade) {
  EXPECT_TRUE(CheckWritable(folder_.Path("a/b/c")).ok());
  EXPECT_FALSE(FileExists(folder_.Path("a")));
  ASSERT_TRUE(WriteFileAtomically(folder_.Path("f"), "x").ok());
  const absl::Status in_file = CheckWritable(folder_.Path("f/a/b"));
  EXPECT_EQ(ExitCodeOf(in_file), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(in_file), HasSubstr("'" + folder_.Path("f") + "' is not a folder"));
}

TEST_F(OutputFolder, AFolderThatRefusesToBeWrittenIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(::mkdir(folder_.Path("mine").c_str(), 0500), 0);
  const absl::Status status = CheckWritable(folder_.Path("mine/run"));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("'" + folder_.Path("mine") + "' (EACCES"));
}

}  // namespace
}  // namespace forebay
