#include "forebay/base/output_folder.h"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Root may write everywhere, but for a child that gives that up. False where it cannot.
bool ObeyPermissions() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  for (const uint32_t right : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) {
    sets[CAP_TO_INDEX(right)].effective &= ~CAP_TO_MASK(right);
    sets[CAP_TO_INDEX(right)].permitted &= ~CAP_TO_MASK(right);  // what access(2) goes by
  }
  return ::syscall(SYS_capset, &header, sets) == 0;
}

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

TEST_F(OutputFolder, ALinkThatLeadsNowhereIsNamed) {
  ASSERT_EQ(::symlink("/no/such folder", folder_.Path("link").c_str()), 0);
  for (const char* const name : {"link", "link/run"}) {
    const absl::Status status = CheckWritable(folder_.Path(name));
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_EQ(MessageOf(status), "'" + folder_.Path("link") +
                                     "' is a symbolic link that leads nowhere: there is no "
                                     "'/no/such folder'. Make that folder, or remove the link");
  }
}

TEST_F(OutputFolder, AFolderThatRefusesToBeWrittenIsNamed) {
  ASSERT_EQ(::mkdir(folder_.Path("mine").c_str(), 0555), 0);
  const std::string told = InChild([&]() -> std::string {
    if (!ObeyPermissions()) return "skip";
    const absl::Status status = CheckWritable(folder_.Path("mine/run"));
    return fmt::format("{}: {}", static_cast<int>(ExitCodeOf(status)), MessageOf(status));
  });
  if (told == "skip") GTEST_SKIP() << "this system does not let root give up its rights";
  EXPECT_THAT(told, StartsWith(fmt::format("{}: ", static_cast<int>(ExitCode::kStorage))));
  EXPECT_THAT(told, HasSubstr("'" + folder_.Path("mine") + "' (EACCES"));
}

}  // namespace
}  // namespace forebay
