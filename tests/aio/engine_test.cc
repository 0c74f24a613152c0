// What every engine must do. A new engine joins by adding itself to the list at the end.
#include "forebay/aio/engine.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "forebay/aio/faulty_disk.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kFileBytes = 1 << 20;

struct EngineCase {
  std::string name;
  int num_threads = 1;
  FaultPlan faults;
};

void FillRandom(std::span<std::byte> bytes, uint64_t seed) {
  const CounterRng rng(seed);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(rng.Bits64(i));
}

class EngineTest : public testing::TestWithParam<EngineCase> {
 protected:
  void SetUp() override { Start(GetParam().faults); }

  void Start(const FaultPlan& faults) {
    engine_.reset();
    disk_ = std::make_unique<FaultyDisk>(faults);
    engine_ = CreateThreadsEngine({.num_threads = GetParam().num_threads}, disk_.get());
    const bool create = !FileExists(path_);
    auto file = OpenDirectFile(path_, {.create = create, .size_bytes = create ? kFileBytes : 0});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = engine_->AddFile(std::move(file->fd), path_);
  }

  HostBuffer Buffer(int64_t size_bytes) {
    auto buffer = HostBuffer::Create(&budget_, "test", size_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  void Prepare(IoOp& op, IoKind kind, int64_t offset_bytes, std::span<std::byte> buffer) {
    op.kind = kind;
    op.io_class = kind == IoKind::kRead ? IoClass::kDemandRead : IoClass::kWriteBack;
    op.file = file_;
    op.offset_bytes = offset_bytes;
    op.buffer = buffer;
  }

  absl::Status Run(IoKind kind, int64_t offset_bytes, std::span<std::byte> buffer) {
    IoOp op;
    Prepare(op, kind, offset_bytes, buffer);
    engine_->Submit(op);
    return engine_->Wait(op);
  }

  MemoryBudget budget_{0};
  TemporaryFolder folder_;
  std::string path_ = folder_.Path("file");
  std::unique_ptr<FaultyDisk> disk_;
  std::unique_ptr<Engine> engine_;
  int file_ = -1;
};

TEST_P(EngineTest, ReadsBackWhatItWrote) {
  const HostBuffer written = Buffer(65536);
  const HostBuffer read = Buffer(65536);
  FillRandom(written.bytes(), 1);
  ASSERT_TRUE(Run(IoKind::kWrite, 8192, written.bytes()).ok());
  ASSERT_TRUE(Run(IoKind::kRead, 8192, read.bytes()).ok());
  EXPECT_TRUE(std::ranges::equal(read.bytes(), written.bytes()));
}

TEST_P(EngineTest, ManyOpsInFlightEachReachTheirOwnPlace) {
  constexpr int kNumOps = 32;
  constexpr int64_t kOpBytes = kFileBytes / kNumOps;
  const HostBuffer written = Buffer(kFileBytes);
  const HostBuffer read = Buffer(kFileBytes);
  FillRandom(written.bytes(), 2);
  std::array<IoOp, kNumOps> ops;
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    const auto bytes = (kind == IoKind::kWrite ? written : read).bytes();
    for (int i = 0; i < kNumOps; ++i) {
      Prepare(ops[i], kind, i * kOpBytes, bytes.subspan(i * kOpBytes, kOpBytes));
      engine_->Submit(ops[i]);
    }
    for (IoOp& op : ops) EXPECT_EQ(engine_->Wait(op), absl::OkStatus());
  }
  EXPECT_TRUE(std::ranges::equal(read.bytes(), written.bytes()));
}

TEST_P(EngineTest, SeveralThreadsMaySubmitAndWait) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const HostBuffer buffer = Buffer(4096);
      for (int round = 0; round < 20; ++round) {
        FillRandom(buffer.bytes(), 100 * t + round);
        const std::vector<std::byte> expected(buffer.bytes().begin(), buffer.bytes().end());
        EXPECT_TRUE(Run(IoKind::kWrite, 4096 * t, buffer.bytes()).ok());
        std::ranges::fill(buffer.bytes(), std::byte{0});
        EXPECT_TRUE(Run(IoKind::kRead, 4096 * t, buffer.bytes()).ok());
        EXPECT_TRUE(std::ranges::equal(buffer.bytes(), expected));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(EngineTest, WaitingForAnOpThatWasNeverSubmittedIsOk) {
  IoOp op;
  EXPECT_TRUE(engine_->Wait(op).ok());
}

TEST_P(EngineTest, AnErrorIsReportedOnceAndTheOpCanBeUsedAgain) {
  const HostBuffer buffer = Buffer(8192);
  IoOp op;
  Prepare(op, IoKind::kRead, kFileBytes - 4096, buffer.bytes());
  engine_->Submit(op);
  EXPECT_FALSE(engine_->Wait(op).ok());
  EXPECT_TRUE(engine_->Wait(op).ok());
  op.offset_bytes = 0;
  engine_->Submit(op);
  EXPECT_TRUE(engine_->Wait(op).ok());
}

TEST_P(EngineTest, AReadPastTheEndOfTheFileIsCorruption) {
  const HostBuffer buffer = Buffer(8192);
  const absl::Status status = Run(IoKind::kRead, kFileBytes - 4096, buffer.bytes());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr(path_));
}

TEST_P(EngineTest, AFileCutInsideABlockIsCorruption) {
  ASSERT_EQ(::truncate(path_.c_str(), 4096 + 512), 0);
  const HostBuffer buffer = Buffer(8192);
  EXPECT_EQ(ExitCodeOf(Run(IoKind::kRead, 0, buffer.bytes())), ExitCode::kCorrupt);
}

TEST_P(EngineTest, AFailedCallFailsItsOpAndNoOther) {
  FaultPlan faults = GetParam().faults;
  faults.fail_call = 0;
  Start(faults);
  const HostBuffer buffer = Buffer(4096);
  const absl::Status status = Run(IoKind::kWrite, 4096, buffer.bytes());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("write of 4096 bytes at 4096 of '" + path_ + "'"));
  EXPECT_THAT(MessageOf(status), HasSubstr("EIO"));
  EXPECT_TRUE(Run(IoKind::kWrite, 4096, buffer.bytes()).ok());
}

TEST_P(EngineTest, AFailedFlushIsFinal) {
  FaultPlan faults = GetParam().faults;
  faults.fail_call = 0;
  Start(faults);
  const absl::Status first = engine_->Flush(file_);
  EXPECT_EQ(ExitCodeOf(first), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(first), HasSubstr(path_));
  const absl::Status second = engine_->Flush(file_);
  EXPECT_EQ(ExitCodeOf(second), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(second), HasSubstr("earlier flush"));
  EXPECT_EQ(disk_->num_calls(), 1) << "the kernel would answer OK, so it must not be asked";
}

TEST_P(EngineTest, AFileSizeLimitIsAnErrorAndNotADeadlySignal) {
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit limit = before;
  limit.rlim_cur = kFileBytes;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const HostBuffer buffer = Buffer(4096);
  const absl::Status status = Run(IoKind::kWrite, kFileBytes, buffer.bytes());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("EFBIG"));
  EXPECT_THAT(MessageOf(status), HasSubstr("ulimit -f"));
}

TEST_P(EngineTest, CountsWhatItMoved) {
  const HostBuffer buffer = Buffer(12288);
  ASSERT_TRUE(Run(IoKind::kWrite, 0, buffer.bytes()).ok());
  ASSERT_TRUE(Run(IoKind::kRead, 0, buffer.bytes().first(4096)).ok());
  ASSERT_FALSE(Run(IoKind::kRead, kFileBytes, buffer.bytes()).ok());
  ASSERT_TRUE(engine_->Flush(file_).ok());
  const IoStats stats = engine_->stats();
  EXPECT_EQ(stats.write_bytes, 12288);
  EXPECT_EQ(stats.write_ops, 1);
  EXPECT_EQ(stats.read_bytes, 4096);
  EXPECT_EQ(stats.read_ops, 1);
  EXPECT_EQ(stats.flushes, 1);
}

TEST_P(EngineTest, ARemovedFileIsClosed) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd reader(fds[0]);
  const int file = engine_->AddFile(UniqueFd(fds[1]), "pipe");
  engine_->RemoveFile(file);
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0) << "the writing end is closed";
}

TEST_P(EngineTest, EndingTheEngineCompletesWhatWasQueued) {
  const HostBuffer buffer = Buffer(kFileBytes);
  FillRandom(buffer.bytes(), 3);
  std::array<IoOp, 16> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], IoKind::kWrite, i * 65536, buffer.bytes().subspan(i * 65536, 65536));
    engine_->Submit(ops[i]);
  }
  engine_.reset();
  for (IoOp& op : ops) EXPECT_FALSE(op.pending());
  const auto contents = ReadWholeFile(path_, kFileBytes);
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(std::memcmp(contents->data(), buffer.data(), kFileBytes), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Engines, EngineTest,
    testing::Values(EngineCase{"OneThread", 1, {}}, EngineCase{"FourThreads", 4, {}},
                    EngineCase{"ShortTransfers", 2, {.max_transfer_bytes = 10'000}},
                    EngineCase{"OutOfOrder", 4, {.max_delay_us = 500}},
                    EngineCase{"BusyDevice", 2, {.max_transfer_bytes = 40'000, .again_every = 5}}),
    [](const auto& c) { return c.param.name; });
TEST(EngineDeathTest, AMisalignedOpIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  alignas(kIoAlignBytes) static std::array<std::byte, 8192> bytes;
  const auto submit = [](int64_t offset_bytes, std::span<std::byte> buffer) {
    const auto engine = CreateThreadsEngine({.num_threads = 1});
    IoOp op;
    op.file = 0;
    op.offset_bytes = offset_bytes;
    op.buffer = buffer;
    engine->Submit(op);
  };
  const std::span<std::byte> all(bytes);
  EXPECT_DEATH(submit(512, all), "kIoAlignBytes");
  EXPECT_DEATH(submit(0, all.first(512)), "kIoAlignBytes");
  EXPECT_DEATH(submit(0, all.subspan(8, 4096)), "kIoAlignBytes");
}

TEST(ThreadsEngine, SaysItsNameAndWorksOnTheRealDisk) {
  const TemporaryFolder folder;
  const auto engine = CreateThreadsEngine({.num_threads = 3});
  EXPECT_EQ(engine->name(), "threads (3)");
  auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 4096});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(engine->Flush(engine->AddFile(std::move(file->fd), folder.Path("file"))).ok());
}

}  // namespace
}  // namespace forebay
