#include "forebay/base/file_space.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kPart = 1 << 16;

TEST(ReserveFileSpace, TakesNothingWhereThereIsTooLittle) {
  const TemporaryFolder folder;
  const auto fd = OpenFile(folder.Path("file"), O_RDWR | O_CREAT);
  ASSERT_TRUE(fd.ok()) << fd.status();
  const auto free_bytes = FreeSpace(folder.path());
  ASSERT_TRUE(free_bytes.ok()) << free_bytes.status();
  EXPECT_EQ(ReserveFileSpace(fd->get(), *free_bytes + (int64_t{1} << 40)), ENOSPC);
  struct stat info = {};
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0) << "an attempt would have filled the disk";
  EXPECT_EQ(info.st_size, 0);
}

// Each of its parts is of another kind. Skips where the file system has no fallocate.
class FileInParts : public testing::Test {
 protected:
  // [written | hole | reserved and not written | hole | written], then reserved behind the end.
  void SetUp() override {
    auto fd = OpenFile(path_, O_RDWR | O_CREAT);
    ASSERT_TRUE(fd.ok()) << fd.status();
    fd_ = *std::move(fd);
    for (const int64_t written : {0, 4}) {
      ASSERT_EQ(::pwrite(fd_.get(), text_.data(), text_.size(), written * kPart), kPart);
    }
    ASSERT_EQ(::fsync(fd_.get()), 0);
    const bool reserves = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 2 * kPart, kPart) == 0 &&
                          ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 5 * kPart, kPart) == 0;
    if (!reserves) GTEST_SKIP() << "the file system of " << folder_.path() << " has no fallocate";
  }

  struct stat Stat() const {
    struct stat info = {};
    EXPECT_EQ(::fstat(fd_.get(), &info), 0);
    return info;
  }
  std::string Read(int64_t part) const {
    std::string text(kPart, '?');
    EXPECT_EQ(::pread(fd_.get(), text.data(), text.size(), part * kPart), kPart);
    return text;
  }
  int64_t Missing(int64_t size_bytes) const {
    const auto missing = MissingFileSpace(path_, size_bytes);
    EXPECT_TRUE(missing.ok()) << missing.status();
    return missing.value_or(-1);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("file");
  const std::string text_ = std::string(kPart, 'x');
  UniqueFd fd_;
};

TEST_F(FileInParts, LackHolesAndWhatLiesBehindTheEndButNotWhatIsReserved) {
  EXPECT_EQ(Missing(kPart), 0);
  EXPECT_EQ(Missing(2 * kPart), kPart);
  EXPECT_EQ(Missing(3 * kPart), kPart);
  EXPECT_EQ(Missing(5 * kPart), 2 * kPart);
  EXPECT_EQ(Missing(6 * kPart), 2 * kPart) << "reserved behind the end";
  EXPECT_EQ(Missing(9 * kPart), 5 * kPart);
}

TEST_F(FileInParts, GetWhatTheyLackAndKeepWhatTheyHold) {
  ASSERT_EQ(ReserveFileSpace(fd_.get(), 6 * kPart, FileLength::kStays), 0);
  EXPECT_EQ(Stat().st_size, 5 * kPart);
  EXPECT_EQ(Missing(6 * kPart), 0);
  ASSERT_EQ(ReserveFileSpace(fd_.get(), 6 * kPart), 0);
  EXPECT_EQ(Stat().st_size, 6 * kPart) << "its space was there already";
  ASSERT_EQ(ReserveFileSpace(fd_.get(), 8 * kPart), 0);
  EXPECT_EQ(Stat().st_size, 8 * kPart);
  EXPECT_EQ(Missing(8 * kPart), 0);
  ASSERT_EQ(ReserveFileSpace(fd_.get(), kPart), 0);
  EXPECT_EQ(Stat().st_size, 8 * kPart) << "it never shrinks";
  EXPECT_EQ(Read(0), text_);
  EXPECT_EQ(Read(4), text_);
  for (const int64_t empty : {1, 2, 3, 5}) EXPECT_EQ(Read(empty), std::string(kPart, '\0'));
}

TEST_F(FileInParts, HaveMoreExtentsThanOneQuestionIsAnsweredWith) {
  constexpr int64_t kHoles = 1000;
  constexpr int64_t kBlock = 4096;
  const auto fd = OpenFile(folder_.Path("many"), O_RDWR | O_CREAT);
  ASSERT_TRUE(fd.ok()) << fd.status();
  for (int64_t i = 0; i < kHoles; ++i) {
    ASSERT_EQ(::pwrite(fd->get(), "x", 1, (2 * i + 1) * kBlock), 1);
  }
  ASSERT_EQ(::fsync(fd->get()), 0);
  if (Stat().st_blksize != kBlock) GTEST_SKIP() << "blocks of another size";
  EXPECT_EQ(*MissingFileSpace(folder_.Path("many"), 2 * kHoles * kBlock), kHoles * kBlock);
  ASSERT_EQ(ReserveFileSpace(fd->get(), 2 * kHoles * kBlock), 0);
  EXPECT_EQ(*MissingFileSpace(folder_.Path("many"), 2 * kHoles * kBlock), 0);
}

TEST(MissingFileSpace, OfNoFileIsAnError) {
  const TemporaryFolder folder;
  EXPECT_EQ(ExitCodeOf(MissingFileSpace(folder.Path("none"), 1).status()), ExitCode::kBadInput);
}

}  // namespace
}  // namespace forebay
