#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/tests/aio/scratch_mount.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr char kTmpfs[] = "/dev/shm";

bool IsTmpfs(const std::string& path) {
  struct statfs info = {};
  return ::statfs(path.c_str(), &info) == 0 && info.f_type == 0x01021994;
}

TEST(OpenDirectFile, ReservesTheSpaceAndLeavesItZeroed) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("file");
  const auto file = OpenDirectFile(path, {.create = true, .size_bytes = 1 << 20});
  ASSERT_TRUE(file.ok()) << file.status();
  struct stat info = {};
  ASSERT_EQ(::fstat(file->fd.get(), &info), 0);
  EXPECT_EQ(info.st_size, 1 << 20);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto contents = ReadWholeFile(path, 1 << 20);
  ASSERT_TRUE(contents.ok());
  EXPECT_TRUE(std::ranges::all_of(*contents, [](char c) { return c == 0; }));
}

// What a file's creation and growth say of its space on a new ext4 with these features.
std::string SpaceOn(const std::string& features) {
  const TemporaryFolder folder;
  const ScratchMount mount = {
      .image = folder.Path("image"), .directory = folder.Path("mount"), .features = features};
  if (!MakeDirectories(mount.directory).ok()) return "skip: no folder";
  return InChild([&]() -> std::string {
    const std::string why_not = MountScratch(mount);
    if (!why_not.empty()) return "skip: " + why_not;
    const std::string path = JoinPath(mount.directory, "file");
    const auto made = OpenDirectFile(path, {.create = true, .size_bytes = 1 << 20});
    const auto grown = OpenDirectFile(path, {.size_bytes = 2 << 20});
    const auto bare =
        OpenDirectFile(path + "2", {.create = true, .size_bytes = 1 << 20, .reserve = false});
    if (!made.ok() || !grown.ok() || !bare.ok()) return "failed";
    if (FileSize(path).value_or(0) != 2 << 20) return "wrong size";
    return made->why_unreserved + "|" + grown->why_unreserved + "|" + bare->why_unreserved;
  });
}

TEST(OpenDirectFile, SaysWhereSpaceCannotBeReserved) {
  // Block maps, as ext2 has them, know no space that is not written yet.
  const std::string mapped = SpaceOn("^extent,^64bit");
  if (mapped.starts_with("skip: ")) GTEST_SKIP() << mapped.substr(6);
  EXPECT_THAT(mapped, testing::MatchesRegex(".*no fallocate.*\\|.*no fallocate.*\\|"));
  EXPECT_EQ(SpaceOn("extent"), "||");
}

TEST(OpenDirectFile, IsDirectExactlyWhereTheKernelSaysSo) {
  const TemporaryFolder folder;
  const auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 8192});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((::fcntl(file->fd.get(), F_GETFL) & O_DIRECT) != 0, file->direct);
  EXPECT_EQ(file->why_not_direct.empty(), file->direct);
}

TEST(OpenDirectFile, OpensWhatItCreated) {
  const TemporaryFolder folder;
  const auto made = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 8192});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto opened = OpenDirectFile(folder.Path("file"), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->direct, made->direct);
}

TEST(OpenDirectFile, KnowsThatTmpfsIsNotDirect) {
  if (!IsTmpfs(kTmpfs)) GTEST_SKIP() << kTmpfs << " is no tmpfs here";
  const std::string path =
      JoinPath(kTmpfs, "forebay-direct-file-test-" + std::to_string(::getpid()));
  const auto file = OpenDirectFile(path, {.create = true, .size_bytes = 8192});
  ::unlink(path.c_str());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->direct);
  EXPECT_THAT(file->why_not_direct, HasSubstr("tmpfs"));
}

TEST(OpenDirectFile, DoesNotOverwriteAFile) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder.Path("file"), "precious").ok());
  const auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 8192});
  EXPECT_EQ(ExitCodeOf(file.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(file.status()), HasSubstr("exists already"));
  EXPECT_EQ(*ReadWholeFile(folder.Path("file"), 100), "precious");
}

TEST(OpenDirectFile, DoesNotFollowSymbolicLinks) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder.Path("target"), "precious").ok());
  ASSERT_EQ(::symlink(folder.Path("target").c_str(), folder.Path("link").c_str()), 0);
  ASSERT_EQ(::symlink(folder.Path("nowhere").c_str(), folder.Path("dangling").c_str()), 0);
  const auto opened = OpenDirectFile(folder.Path("link"), {});
  EXPECT_EQ(ExitCodeOf(opened.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(opened.status()), HasSubstr("symbolic link"));
  EXPECT_FALSE(OpenDirectFile(folder.Path("dangling"), {.create = true, .size_bytes = 4096}).ok());
  EXPECT_FALSE(FileExists(folder.Path("nowhere")));
}

TEST(OpenDirectFile, AMissingFileIsBadInput) {
  const TemporaryFolder folder;
  const auto file = OpenDirectFile(folder.Path("file"), {});
  EXPECT_EQ(ExitCodeOf(file.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(file.status()), HasSubstr(folder.Path("file")));
}

TEST(OpenDirectFile, AFolderIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(ExitCodeOf(OpenDirectFile(folder.path(), {}).status()), ExitCode::kStorage);
}

TEST(OpenDirectFile, GrowsAFileThatIsShorterThanAskedForAndKeepsItsBytes) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("file");
  ASSERT_TRUE(WriteFileAtomically(path, "kept").ok());
  ASSERT_TRUE(OpenDirectFile(path, {.size_bytes = 1 << 20}).ok());
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 1 << 20);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
  EXPECT_EQ(ReadWholeFile(path, 1 << 20)->substr(0, 4), "kept");
}

// ext4 gives all it has before it finds that this is not enough, and leaves the file that long.
TEST(OpenDirectFile, AFileThatCannotGrowHasItsOldSizeAgainAndTheDiskItsSpace) {
  const TemporaryFolder folder;
  const std::string image = folder.Path("image");
  const std::string mounted = folder.Path("mounted");
  ASSERT_TRUE(MakeDirectories(mounted).ok());
  const std::string command = "truncate -s 16M '" + image + "' && mkfs.ext4 -q '" + image +
                              "' && mount -o loop '" + image + "' '" + mounted + "'";
  if (std::system((command + " >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "mounting a small ext4 needs root, loop devices and mkfs.ext4";
  }
  const std::string path = JoinPath(mounted, "file");
  ASSERT_TRUE(OpenDirectFile(path, {.create = true, .size_bytes = 1 << 20}).ok());
  const int64_t free_bytes = *FreeSpace(mounted);
  const absl::Status status = OpenDirectFile(path, {.size_bytes = 1 << 26}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(status), HasSubstr(path));
  EXPECT_EQ(*FileSize(path), 1 << 20);
  EXPECT_GE(*FreeSpace(mounted), free_bytes - (1 << 16)) << "but for the file system's own records";
  EXPECT_EQ(::umount(mounted.c_str()), 0);
}

TEST(OpenDirectFile, LeavesALongerFileAsLongAsItIs) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("file");
  ASSERT_TRUE(OpenDirectFile(path, {.create = true, .size_bytes = 1 << 20}).ok());
  ASSERT_TRUE(OpenDirectFile(path, {.size_bytes = 4096}).ok());
  ASSERT_TRUE(OpenDirectFile(path, {}).ok());
  EXPECT_EQ(*FileSize(path), 1 << 20);
}

TEST(OpenDirectFile, AFullFileSystemIsNamedWithNeedAndFreeSpaceAndNothingIsLeft) {
  const TemporaryFolder folder;
  const auto free_bytes = FreeSpace(folder.path());
  ASSERT_TRUE(free_bytes.ok());
  const int64_t too_much = (*free_bytes + (int64_t{1} << 40)) / 4096 * 4096;
  const auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = too_much});
  if (ExitCodeOf(file.status()) == ExitCode::kStorage)
    GTEST_SKIP() << file.status();  // beyond its file size limit
  EXPECT_EQ(ExitCodeOf(file.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(file.status()), HasSubstr(std::to_string(too_much)));
  EXPECT_THAT(MessageOf(file.status()), HasSubstr("free"));
  EXPECT_FALSE(FileExists(folder.Path("file")));
}

}  // namespace
}  // namespace forebay
