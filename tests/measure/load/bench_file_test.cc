#include "forebay/measure/load/bench_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/measure/load/block_pattern.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/measure/bench_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSize = int64_t{1} << 20;
constexpr int64_t kBlock = 64 << 10;

TEST(BenchFile, HasNoNameAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const auto is_empty = [&] { return std::filesystem::is_empty(folder.path()); };
  {
    const auto file = BenchFile::Create(folder.path(), kSize, true, false);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->size_bytes(), kSize);
    EXPECT_TRUE(is_empty());
  }
  EXPECT_TRUE(is_empty());
}

TEST(BenchFile, OthersCanOpenItThroughProc) {
  const TemporaryFolder folder;
  const auto file = BenchFile::Create(folder.path(), kSize, false, false);
  ASSERT_TRUE(file.ok()) << file.status();
  const UniqueFd other(::open(file->PathForOthers().c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(other.valid());
  EXPECT_EQ(::lseek(other.get(), 0, SEEK_END), kSize);
}

TEST(BenchFile, AFolderThatIsNoneIsBadInput) {
  const auto file = BenchFile::Create("/there/is/none", kSize, true, false);
  EXPECT_EQ(ExitCodeOf(file.status()), ExitCode::kBadInput);
}

TEST(BenchFile, MoreThanTheDiskHasDoesNotFit) {
  const TemporaryFolder folder;
  const auto file = BenchFile::Create(folder.path(), int64_t{1} << 50, true, false);
  EXPECT_EQ(ExitCodeOf(file.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(file.status()), HasSubstr("smaller --size"));
  // Not what is left while the attempt holds the rest.
  EXPECT_THAT(MessageOf(file.status()), Not(HasSubstr("0 B are free")));
}

TEST(CheckRoom, AFileFitsIntoWhatIsFree) {
  EXPECT_TRUE(CheckRoom("/x", 64 << 20, 64 << 20).ok());
  const absl::Status status = CheckRoom("/x", 64 << 20, 25 << 20);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(status), HasSubstr("no room for a file of 64.0 MiB: 25.0 MiB are free"));
  EXPECT_THAT(MessageOf(status), HasSubstr("smaller --size"));
  EXPECT_THAT(MessageOf(CheckRoom("/x", 2, 1, "Free some")), EndsWith("are free. Free some"));
}

TEST(BenchFile, GenerationsCountTheWritesOfEachRange) {
  const TemporaryFolder folder;
  auto file = BenchFile::Create(folder.path(), kSize, false, true);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->NextPlace(0, kBlock).generation, 1u);
  EXPECT_EQ(file->NextPlace(0, kBlock).generation, 2u);
  EXPECT_EQ(file->NextPlace(kBlock, kBlock).generation, 1u);
  EXPECT_EQ(file->PlaceAt(0).generation, 2u);
  EXPECT_EQ(file->PlaceAt(kBlock - 4096).generation, 2u);
  EXPECT_EQ(file->PlaceAt(kBlock).generation, 1u);
  EXPECT_EQ(file->PlaceAt(0).file, file->id());
}

// A file that is written and read back on every engine.
class FilePassTest : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    const std::string why_not = WhyNotHere(GetParam(), folder_.path());
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    auto engine = MakeEngineOf(GetParam(), EngineOptionsOf(SmallJob(folder_.path()), 4));
    ASSERT_TRUE(engine.ok()) << engine.status();
    Use(*std::move(engine));
  }
  void Use(std::unique_ptr<Engine> engine) {
    engine_ = std::move(engine);
    auto file = BenchFile::Create(folder_.path(), kSize + 8192, engine_->direct(), true);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto memory = HostBuffer::Create(&budget_, "test", 4 * kBlock);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }

  absl::Status Write() {
    FilePass pass = NewPass(IoKind::kWrite);
    pass.use = [&](int64_t offset, std::span<std::byte> buffer) {
      pattern_.Fill(buffer, file_.NextPlace(offset, static_cast<int64_t>(buffer.size())));
    };
    return RunFilePass(*engine_, file_, pass);
  }
  PatternTally ReadBack() {
    PatternTally tally;
    FilePass pass = NewPass(IoKind::kRead);
    pass.use = [&](int64_t offset, std::span<std::byte> buffer) {
      CheckPattern(buffer, file_.PlaceAt(offset), tally);
    };
    EXPECT_EQ(RunFilePass(*engine_, file_, pass), absl::OkStatus());
    return tally;
  }
  FilePass NewPass(IoKind kind) {
    FilePass pass;
    pass.kind = kind;
    pass.block_bytes = kBlock;
    pass.memory = memory_.bytes();
    pass.stop = [this] { return ++num_asked_ > stop_after_; };
    return pass;
  }
  // Puts what lies at `from` also at `to`, behind the engine's back.
  void CopyBlock(int64_t from, int64_t to) {
    const UniqueFd fd(::open(file_.PathForOthers().c_str(), O_RDWR | O_CLOEXEC));
    std::vector<std::byte> block(static_cast<size_t>(kPatternBlockBytes));
    ASSERT_TRUE(PreadAll(fd.get(), block, from, "test").ok());
    ASSERT_TRUE(PwriteAll(fd.get(), block, to, "test").ok());
    ASSERT_TRUE(SyncFile(fd.get(), "test").ok());
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  TemporaryFolder folder_;
  MemoryBudget budget_{0};
  BenchFile file_;
  HostBuffer memory_;
  const BlockPattern pattern_{1, 0};
  std::unique_ptr<Engine> engine_;
  int num_asked_ = 0;
  int stop_after_ = 1 << 30;
};

TEST_P(FilePassTest, EveryBlockIsReadAsItWasWritten) {
  ASSERT_EQ(Write(), absl::OkStatus());
  const PatternTally tally = ReadBack();
  EXPECT_EQ(tally.num_blocks, (kSize + 8192) / kPatternBlockBytes);
  EXPECT_EQ(tally.num_bad(), 0) << tally.first_problem;
}

TEST_P(FilePassTest, ABlockAtTheWrongPlaceIsMisdirected) {
  ASSERT_EQ(Write(), absl::OkStatus());
  CopyBlock(3 * kPatternBlockBytes, 9 * kPatternBlockBytes);
  const PatternTally tally = ReadBack();
  EXPECT_EQ(tally.num_misdirected, 1);
  EXPECT_EQ(tally.num_torn, 1);
  EXPECT_EQ(tally.num_bad(), 1);
}

TEST_P(FilePassTest, AWriteThatGotLostIsStale) {
  ASSERT_EQ(Write(), absl::OkStatus());
  // The file thinks that it wrote this range again; the disk knows nothing of it.
  file_.NextPlace(2 * kBlock, kBlock);
  const PatternTally tally = ReadBack();
  EXPECT_EQ(tally.num_stale, kBlock / kPatternBlockBytes);
  EXPECT_EQ(tally.num_torn, 0);
}

TEST_P(FilePassTest, AStopIsHeardAndNothingStaysInFlight) {
  stop_after_ = 5;
  EXPECT_EQ(ExitCodeOf(Write()), ExitCode::kInterrupted);
}

INSTANTIATE_TEST_SUITE_P(Engines, FilePassTest, testing::ValuesIn(EngineKinds()),
                         [](const auto& c) { return std::string(NameOf(c.param)); });

// The same on a simulated disk with faults.
class FaultyFilePassTest : public FilePassTest {
 protected:
  void SetUp() override {}
  void Start(const FaultPlan& faults) {
    Use(CreateSimulatedEngine({.block_bytes = kBlock}, {}, std::make_shared<FaultScript>(faults)));
  }
};

TEST_F(FaultyFilePassTest, ABitThatFlipsInAWriteIsDamage) {
  Start({.flip_call = 5});
  ASSERT_EQ(Write(), absl::OkStatus());
  const PatternTally tally = ReadBack();
  EXPECT_EQ(tally.num_damaged, 1) << tally.first_problem;
  EXPECT_EQ(tally.num_bad(), 1);
  EXPECT_EQ(tally.num_torn, 1);
}

TEST_F(FaultyFilePassTest, ABitThatFlipsInAReadIsDamage) {
  constexpr int64_t kNumWrites = (kSize + 8192 + kBlock - 1) / kBlock;
  Start({.flip_call = kNumWrites + 3});
  ASSERT_EQ(Write(), absl::OkStatus());
  EXPECT_EQ(ReadBack().num_damaged, 1);
}

TEST_F(FaultyFilePassTest, ShortTransfersAreNoProblem) {
  Start({.max_transfer_bytes = 10'000});
  ASSERT_EQ(Write(), absl::OkStatus());
  EXPECT_EQ(ReadBack().num_bad(), 0);
}

TEST_F(FaultyFilePassTest, AnErrorOfTheDiskIsTheErrorOfThePass) {
  Start({.fail_call = 7});
  const absl::Status status = Write();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("EIO"));
}

}  // namespace
}  // namespace forebay
