#include "forebay/swap/store/store_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// A process that has locked `path`, until it is told to let go or its object goes.
class Holder {
 public:
  explicit Holder(const std::string& path) {
    int fds[2];
    FOREBAY_CHECK(::pipe(fds) == 0);
    const UniqueFd reader(fds[0]);
    UniqueFd writer(fds[1]);
    pid_ = ::fork();
    FOREBAY_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      const bool locked = ::flock(fd, LOCK_EX) == 0 && ::write(writer.get(), "x", 1) == 1;
      while (locked) ::pause();  // until it is killed
      ::_exit(0);
    }
    writer.Reset();
    char byte = 0;
    FOREBAY_CHECK(::read(reader.get(), &byte, 1) == 1);
  }
  ~Holder() { LetGo(); }
  void LetGo() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class StoreLockTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(WriteFileAtomically(path_, "tiles").ok()); }

  UniqueFd Open() const {
    auto fd = OpenFile(path_, O_RDWR);
    FOREBAY_CHECK(fd.ok());
    return *std::move(fd);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("state.fbs");
};

TEST_F(StoreLockTest, AFileThatIsHeldForAWhileIsWaitedFor) {
  Holder holder(path_);
  const UniqueFd fd = Open();
  std::atomic<bool> is_let_go = false;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(100));  // so that somebody waits, mostly
    is_let_go = true;
    holder.LetGo();
  });
  EXPECT_EQ(LockOpenFile(fd.get(), path_), absl::OkStatus());
  EXPECT_TRUE(is_let_go);
  other.join();
}

TEST_F(StoreLockTest, AFileThatStaysLockedIsAnErrorThatNamesTheHolder) {
  if (::access("/proc/locks", R_OK) != 0) GTEST_SKIP() << "/proc/locks cannot be read here";
  const Holder holder(path_);
  const UniqueFd fd = Open();
  const absl::Status status = LockOpenFile(fd.get(), path_, milliseconds(100));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  const std::string pid = std::to_string(holder.pid());
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(path_), HasSubstr("100 ms by process " + pid),
                                       HasSubstr("kill " + pid)));
}

// Who removes a store takes its lock away while it is held; who waited for that one holds the one
// that is there now.
TEST_F(StoreLockTest, ALockThatWasRemovedMeanwhileIsNotTheLock) {
  auto removers = TakeStoreLock(path_);
  ASSERT_TRUE(removers.ok()) << removers.status();
  std::thread remover([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::unlink(path_.c_str());
    removers->Reset();
  });
  const auto mine = TakeStoreLock(path_);
  remover.join();
  ASSERT_TRUE(mine.ok()) << mine.status();
  struct stat held = {};
  struct stat there = {};
  ASSERT_EQ(::fstat(mine->get(), &held), 0);
  ASSERT_EQ(::stat(path_.c_str(), &there), 0);
  EXPECT_EQ(held.st_ino, there.st_ino);
}

TEST_F(StoreLockTest, TheLockOfAStoreNamesTheProcessThatHasIt) {
  const auto lock = TakeStoreLock(path_);
  ASSERT_TRUE(lock.ok()) << lock.status();
  const absl::Status status = TakeStoreLock(path_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(status), HasSubstr("in use by process " + std::to_string(::getpid())));
}

}  // namespace
}  // namespace forebay
