#include "forebay/base/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/shared_file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = ::testing::TempDir() + "/forebay-file-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }
  std::string Path(std::string_view name) const { return JoinPath(folder_, name); }
  static mode_t ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  }

  std::string folder_;
};

TEST_F(FileTest, ProbeTellsWhatIsMissingFromWhatIsForbidden) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  EXPECT_TRUE(*ProbePath(Path("f")));
  EXPECT_FALSE(*ProbePath(Path("g")));
  EXPECT_FALSE(*ProbePath(Path("f/g")));
  // Root may look everywhere.
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  ASSERT_TRUE(MakeDirectories(Path("closed")).ok());
  ASSERT_EQ(::chmod(Path("closed").c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  ASSERT_TRUE(user != 0 || ::seteuid(kNobody) == 0);
  const absl::Status looked = ProbePath(Path("closed/f")).status();
  const absl::Status opened = OpenFile(Path("closed/f"), O_RDONLY).status();
  ASSERT_TRUE(user != 0 || ::seteuid(user) == 0);
  ::chmod(Path("closed").c_str(), 0700);
  for (const absl::Status& status : {looked, opened}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
    EXPECT_THAT(MessageOf(status), HasSubstr("closed/f' failed: EACCES"));
    EXPECT_THAT(MessageOf(status), HasSubstr("chmod"));
  }
}

TEST_F(FileTest, AtomicWriteReplacesTheContentsAndLeavesNoTemporary) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "first, and longer").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "second").ok());
  EXPECT_EQ(*ReadWholeFile(Path("f"), 100), "second");
  EXPECT_FALSE(FileExists(Path("f.tmp")));
}

TEST_F(FileTest, FilesAreCreatedForTheOwnerAlone) {
  const mode_t old_mask = ::umask(0);
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  ASSERT_TRUE(MakeDirectories(Path("d/e")).ok());
  ::umask(old_mask);
  EXPECT_EQ(ModeOf(Path("f")), 0600u);
  EXPECT_EQ(ModeOf(Path("d")), 0700u);
  EXPECT_EQ(ModeOf(Path("d/e")), 0700u);
}

TEST_F(FileTest, SharedFilesAreForWhomTheUmaskLetsReadThem) {
  const mode_t old_mask = ::umask(027);
  ASSERT_TRUE(WriteSharedFileAtomically(Path("f"), "x").ok());
  ASSERT_TRUE(CreateSharedFile(Path("g"), O_WRONLY).ok());
  ASSERT_TRUE(MakeSharedDirectories(Path("d/e")).ok());
  ::umask(old_mask);
  EXPECT_EQ(ModeOf(Path("f")), 0640u);
  EXPECT_EQ(ModeOf(Path("g")), 0640u);
  EXPECT_EQ(ModeOf(Path("d")), 0750u);
  EXPECT_EQ(ModeOf(Path("d/e")), 0750u);
}

TEST_F(FileTest, APointerOfGitLfsIsNotTakenForTheFile) {
  ASSERT_TRUE(
      WriteFileAtomically(Path("f"), "version https://git-lfs.github.com/spec/v1\noid x\n").ok());
  const absl::Status status = ReadWholeFile(Path("f"), 100).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("f': this is a Git LFS pointer"));
  EXPECT_THAT(MessageOf(status), HasSubstr("run git lfs pull"));
}

TEST_F(FileTest, AtomicWriteReplacesALinkInsteadOfWritingThroughIt) {
  ASSERT_TRUE(WriteFileAtomically(Path("precious"), "keep").ok());
  ASSERT_EQ(::symlink(Path("precious").c_str(), Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "new").ok());
  EXPECT_EQ(*ReadWholeFile(Path("precious"), 100), "keep");
  EXPECT_EQ(*ReadWholeFile(Path("link"), 100), "new");
}

TEST_F(FileTest, AtomicWriteSurvivesALinkInTheTemporarysPlace) {
  ASSERT_TRUE(WriteFileAtomically(Path("precious"), "keep").ok());
  ASSERT_EQ(::symlink(Path("precious").c_str(), Path("f.tmp").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "new").ok());
  EXPECT_EQ(*ReadWholeFile(Path("precious"), 100), "keep");
}

TEST_F(FileTest, AFailedAtomicWriteLeavesNothingBehind) {
  ASSERT_TRUE(MakeDirectories(Path("f/occupied")).ok());
  const absl::Status status = WriteFileAtomically(Path("f"), "x");
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("EISDIR"));
  EXPECT_FALSE(FileExists(Path("f.tmp")));
}

TEST_F(FileTest, CreatingThroughALinkIsRefused) {
  ASSERT_EQ(::symlink(Path("elsewhere").c_str(), Path("link").c_str()), 0);
  const auto fd = OpenFile(Path("link"), O_WRONLY | O_CREAT);
  EXPECT_EQ(ExitCodeOf(fd.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(fd.status()), HasSubstr("is a symbolic link"));
  EXPECT_FALSE(FileExists(Path("elsewhere")));
}

TEST_F(FileTest, ALinkWhereAFileOfOursShouldBeIsNamed) {
  ASSERT_TRUE(WriteFileAtomically(Path("precious"), "keep").ok());
  ASSERT_EQ(::symlink(Path("precious").c_str(), Path("link").c_str()), 0);
  const auto fd = OpenFile(Path("link"), O_WRONLY | O_NOFOLLOW);
  EXPECT_THAT(MessageOf(fd.status()), HasSubstr("'" + Path("link") + "' is a symbolic link"));
}

TEST_F(FileTest, AMissingFileIsBadInputAndNamed) {
  const auto contents = ReadWholeFile(Path("missing"), 100);
  EXPECT_EQ(ExitCodeOf(contents.status()), ExitCode::kBadInput);
  EXPECT_EQ(MessageOf(contents.status()), "'" + Path("missing") + "' does not exist");
  EXPECT_EQ(ExitCodeOf(FileSize(Path("missing")).status()), ExitCode::kBadInput);
}

TEST_F(FileTest, ReadingTooLargeAFileIsRefusedBeforeReading) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "123456").ok());
  EXPECT_TRUE(ReadWholeFile(Path("f"), 6).ok());
  const auto contents = ReadWholeFile(Path("f"), 5);
  EXPECT_EQ(ExitCodeOf(contents.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(contents.status()), HasSubstr("has 6 bytes; at most 5"));
}

TEST_F(FileTest, ReadingAFolderOrAFifoIsRefusedAndNeverWaits) {
  EXPECT_THAT(MessageOf(ReadWholeFile(folder_, 100).status()), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(MessageOf(ReadWholeFile(Path("fifo"), 100).status()),
              HasSubstr("not a regular file"));
}

TEST_F(FileTest, FilesOfTheKernelAreReadThoughTheySayThatTheyAreEmpty) {
  ASSERT_EQ(*FileSize("/proc/meminfo"), 0);
  const auto contents = ReadWholeFile("/proc/meminfo", 1 << 20);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_THAT(*contents, HasSubstr("MemAvailable:"));
  EXPECT_EQ(ExitCodeOf(ReadWholeFile("/proc/meminfo", 10).status()), ExitCode::kBadInput);
}

TEST_F(FileTest, LargeFilesAreReadWhole) {
  const std::string large(300'000, 'x');
  ASSERT_TRUE(WriteFileAtomically(Path("f"), large + "end").ok());
  EXPECT_EQ(*ReadWholeFile(Path("f"), 1 << 20), large + "end");
}

TEST_F(FileTest, AReadPastTheEndSaysThatTheFileIsTruncated) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "12345").ok());
  const auto fd = OpenFile(Path("f"), O_RDONLY);
  std::byte buffer[4];
  const absl::Status status = PreadAll(fd->get(), buffer, 3, Path("f"));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("ends at 5, but 4 bytes were expected at 3"));
}

TEST_F(FileTest, ReadsAndWritesAtOffsets) {
  const auto fd = OpenFile(Path("f"), O_RDWR | O_CREAT);
  ASSERT_TRUE(fd.ok());
  const std::string text = "forebay";
  ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(text)), 10, "f").ok());
  ASSERT_TRUE(SyncFile(fd->get(), "f").ok());
  EXPECT_EQ(*FileSize(Path("f")), 17);
  std::string back(4, ' ');
  ASSERT_TRUE(PreadAll(fd->get(), std::as_writable_bytes(std::span(back)), 13, "f").ok());
  EXPECT_EQ(back, "ebay");
}

TEST_F(FileTest, TransfersOnABadDescriptorNameTheCause) {
  std::byte buffer[4] = {};
  EXPECT_THAT(MessageOf(PreadAll(-1, buffer, 0, "f")), HasSubstr("reading 4 bytes of 'f' at 0"));
  EXPECT_THAT(MessageOf(PwriteAll(-1, buffer, 0, "f")), HasSubstr("EBADF"));
  EXPECT_EQ(ExitCodeOf(SyncFile(-1, "f")), ExitCode::kStorage);
}

TEST_F(FileTest, AFullDeviceIsAStorageErrorThatSaysSo) {
  const auto fd = OpenFile("/dev/full", O_WRONLY);
  if (!fd.ok()) GTEST_SKIP() << "no /dev/full here";
  const std::byte buffer[4] = {};
  EXPECT_THAT(MessageOf(PwriteAll(fd->get(), buffer, 0, "/dev/full")), HasSubstr("ENOSPC"));
}

TEST_F(FileTest, MakeDirectoriesAcceptsWhatIsThereAndRefusesFilesInTheWay) {
  ASSERT_TRUE(MakeDirectories(Path("a/b")).ok());
  EXPECT_TRUE(MakeDirectories(Path("a/b/")).ok());
  ASSERT_EQ(::symlink(Path("a").c_str(), Path("link").c_str()), 0);
  EXPECT_TRUE(MakeDirectories(Path("link/c")).ok());
  EXPECT_TRUE(IsDirectory(Path("a/c")));
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "").ok());
  EXPECT_EQ(ExitCodeOf(MakeDirectories(Path("file"))), ExitCode::kStorage);
}

TEST_F(FileTest, NearestFolderGoesUpToOneThatIsThere) {
  ASSERT_TRUE(WriteFileAtomically(Path("file"), "").ok());
  EXPECT_EQ(NearestFolder(folder_), folder_);
  EXPECT_EQ(NearestFolder(Path("not/there/yet")), folder_);
  EXPECT_EQ(NearestFolder(Path("file/below")), folder_);
  EXPECT_EQ(NearestFolder("/"), "/");
}

TEST_F(FileTest, RemoveTreeDoesNotFollowLinks) {
  ASSERT_TRUE(MakeDirectories(Path("tree")).ok());
  ASSERT_TRUE(MakeDirectories(Path("outside")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("outside/keep"), "x").ok());
  ASSERT_EQ(::symlink(Path("outside").c_str(), Path("tree/link").c_str()), 0);
  ASSERT_TRUE(RemoveTree(Path("tree")).ok());
  EXPECT_FALSE(FileExists(Path("tree")));
  EXPECT_TRUE(FileExists(Path("outside/keep")));
  EXPECT_TRUE(RemoveTree(Path("tree")).ok()) << "removing nothing is fine";
}

TEST_F(FileTest, FreeSpaceIsPositiveAndNeedsAnExistingPath) {
  EXPECT_GT(*FreeSpace(folder_), 0);
  EXPECT_EQ(ExitCodeOf(FreeSpace(Path("missing")).status()), ExitCode::kStorage);
}

TEST_F(FileTest, UniqueFdClosesOnceAndMoves) {
  UniqueFd first(::open("/dev/null", O_RDONLY));
  const int number = first.get();
  UniqueFd second = std::move(first);
  EXPECT_EQ(second.get(), number);
  second.Reset();
  EXPECT_FALSE(second.valid());
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

// The standard streams of the process are closed meanwhile.
class ClosedStreams {
 public:
  ClosedStreams() {
    for (const int stream : {0, 1, 2}) {
      kept_[stream] = ::fcntl(stream, F_DUPFD_CLOEXEC, 10);
      ::close(stream);
    }
  }
  ~ClosedStreams() {
    for (const int stream : {0, 1, 2}) {
      ::dup2(kept_[stream], stream);
      ::close(kept_[stream]);
    }
  }

 private:
  int kept_[3];
};

TEST_F(FileTest, NoFileTakesThePlaceOfAClosedStandardStream) {
  int fd = -1;
  bool is_kept_from_children = false;
  bool are_free = true;
  {
    const ClosedStreams closed;
    const absl::StatusOr<UniqueFd> opened = OpenFile(Path("file"), O_WRONLY | O_CREAT | O_EXCL);
    fd = opened.ok() ? opened->get() : -1;
    is_kept_from_children = fd >= 0 && (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
    for (const int stream : {0, 1, 2}) are_free = are_free && ::fcntl(stream, F_GETFD) < 0;
  }
  EXPECT_GT(fd, 2);
  EXPECT_TRUE(is_kept_from_children);
  EXPECT_TRUE(are_free);
}

TEST_F(FileTest, WhereNoHigherNumberIsToBeHadThereIsNoFile) {
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  absl::Status status;
  {
    const ClosedStreams closed;
    const struct rlimit few = {.rlim_cur = 3, .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    status = OpenFile("/dev/null", O_RDONLY).status();
    ::setrlimit(RLIMIT_NOFILE, &before);
  }
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
}

TEST(AbsolutePath, BeginsAtTheRoot) {
  const std::string here = std::filesystem::current_path();
  EXPECT_EQ(*AbsolutePath("a/b"), here + "/a/b");
  EXPECT_EQ(*AbsolutePath("/a/../b"), "/a/../b");  // "a" may be a link
  EXPECT_EQ(ExitCodeOf(AbsolutePath("").status()), ExitCode::kUsage);
  EXPECT_EQ(AbsolutePaths(std::vector<std::string>{"/a", "b"})->back(), here + "/b");
}

TEST(AbsolutePath, WithoutACurrentFolderARelativeOneIsRefused) {
  const std::string here = std::filesystem::current_path();
  TemporaryFolder folder;
  const std::string gone = JoinPath(folder.path(), "gone");
  std::filesystem::create_directory(gone);
  std::filesystem::current_path(gone);
  std::filesystem::remove(gone);
  const absl::Status status = AbsolutePath("a").status();
  const bool is_absolute_fine = AbsolutePath("/a").ok();
  std::filesystem::current_path(here);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_TRUE(is_absolute_fine);
}

TEST(JoinPath, PutsOneSlashBetween) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
}

TEST(ProgramDirectory, HoldsTheRunningProgram) {
  EXPECT_TRUE(FileExists(JoinPath(ProgramDirectory(), "base_test")));
}

TEST(ListFolder, GivesSortedNamesAndTellsNoFolderFromOneThatCannotBeRead) {
  const TemporaryFolder folder;
  for (const char* name : {"b", "a", ".c"}) {
    ASSERT_TRUE(WriteFileAtomically(folder.Path(name), "x").ok());
  }
  using Names = std::vector<std::string>;
  EXPECT_EQ(*ListFolder(folder.path()), (Names{".c", "a", "b"}));
  EXPECT_EQ(*ListFolder(folder.Path("none")), Names());
  EXPECT_EQ(*ListFolder(folder.Path("a")), Names());
  ASSERT_EQ(::symlink("loop", folder.Path("loop").c_str()), 0);
  const absl::Status status = ListFolder(folder.Path("loop")).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_NE(MessageOf(status).find("loop' failed: ELOOP"), std::string::npos) << status;
}

}  // namespace
}  // namespace forebay
