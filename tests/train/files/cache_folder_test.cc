#include "forebay/train/files/cache_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Without HOME and XDG_CACHE_HOME; a folder that stands for /tmp.
class SharedCache : public testing::Test {
 protected:
  SharedCache() {
    for (Variable& variable : variables_) {
      if (const char* value = std::getenv(variable.name)) variable.before = value;
      ::unsetenv(variable.name);
    }
  }
  ~SharedCache() override {
    for (const Variable& variable : variables_) {
      ::unsetenv(variable.name);
      if (variable.before) ::setenv(variable.name, variable.before->c_str(), 1);
    }
  }

  mode_t ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  }

  void ExpectRefusal(const std::string& folder, const std::string& defect) {
    const absl::Status status = CacheFolder("packed", shared_.path()).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("'" + folder + "' " + defect), HasSubstr("Set XDG_CACHE_HOME")));
  }

  TemporaryFolder shared_;
  const std::string own_ = shared_.Path(fmt::format("forebay-{}", ::geteuid()));
  const std::string packed_ = JoinPath(own_, "packed");

 private:
  struct Variable {
    const char* name;
    std::optional<std::string> before;
  };
  Variable variables_[2] = {{"HOME", {}}, {"XDG_CACHE_HOME", {}}};
};

TEST_F(SharedCache, IsMadeForThisUserAlone) {
  const mode_t before = ::umask(0);
  const absl::StatusOr<std::string> made = CacheFolder("packed", shared_.path());
  ::umask(before);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made, packed_);
  EXPECT_EQ(ModeOf(own_), 0700);
  EXPECT_EQ(ModeOf(packed_), 0700);
  EXPECT_EQ(*CacheFolder("packed", shared_.path()), packed_);
}

TEST_F(SharedCache, IsNotReachedThroughALink) {
  const std::string elsewhere = shared_.Path("elsewhere");
  ASSERT_TRUE(MakeDirectories(JoinPath(elsewhere, "packed")).ok());
  ASSERT_EQ(::symlink(elsewhere.c_str(), own_.c_str()), 0);
  ExpectRefusal(own_, "is a symbolic link");
  ASSERT_EQ(::unlink(own_.c_str()), 0);
  ASSERT_EQ(::mkdir(own_.c_str(), 0700), 0);
  ASSERT_EQ(::symlink(elsewhere.c_str(), packed_.c_str()), 0);
  ExpectRefusal(packed_, "is a symbolic link");
}

TEST_F(SharedCache, IsNoFile) {
  ASSERT_TRUE(WriteFileAtomically(own_, "x").ok());
  ExpectRefusal(own_, "is not a folder");
}

TEST_F(SharedCache, IsNotWhereOthersCanWrite) {
  ASSERT_TRUE(CacheFolder("packed", shared_.path()).ok());
  ASSERT_EQ(::chmod(packed_.c_str(), 0770), 0);
  ExpectRefusal(packed_, "can be written by other users");
  ASSERT_EQ(::chmod(own_.c_str(), 0707), 0);
  ExpectRefusal(own_, "can be written by other users");
}

TEST_F(SharedCache, IsNotAnotherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make folders of other users";
  ASSERT_EQ(::mkdir(own_.c_str(), 0700), 0);
  ASSERT_EQ(::chown(own_.c_str(), 12345, 12345), 0);
  ExpectRefusal(own_, "belongs to another user (12345)");
}

TEST_F(SharedCache, IsNotUsedWhereTheUserHasAHome) {
  ::setenv("HOME", "/home/somebody", 1);
  EXPECT_EQ(*CacheFolder("packed", shared_.path()), "/home/somebody/.cache/forebay/packed");
  ::setenv("XDG_CACHE_HOME", "/var/cache/somebody", 1);
  EXPECT_EQ(*CacheFolder("packed", shared_.path()), "/var/cache/somebody/forebay/packed");
  EXPECT_FALSE(FileExists(own_));
}

}  // namespace
}  // namespace forebay
