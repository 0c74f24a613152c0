// What every engine must do, written once and run for each (engine_fixture.h has the list).
#include "forebay/aio/engine.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class EngineTest : public EngineFixture {};

TEST_P(EngineTest, ReadsBackWhatItWrote) {
  const HostBuffer written = Buffer(65536);
  const HostBuffer read = Buffer(65536);
  FillRandom(written.bytes(), 1);
  ASSERT_TRUE(Run(IoKind::kWrite, 8192, written.bytes()).ok());
  ASSERT_TRUE(Run(IoKind::kRead, 8192, read.bytes()).ok());
  EXPECT_TRUE(SameBytes(read.bytes(), written.bytes()));
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
      engine().Submit(ops[i]);
    }
    for (IoOp& op : ops) EXPECT_EQ(engine().Wait(op), absl::OkStatus());
  }
  EXPECT_TRUE(SameBytes(read.bytes(), written.bytes()));
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
        EXPECT_TRUE(SameBytes(buffer.bytes(), expected));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(EngineTest, WaitingForAnOpThatWasNeverSubmittedIsOk) {
  IoOp op;
  EXPECT_TRUE(engine().Wait(op).ok());
}

TEST_P(EngineTest, AnErrorIsReportedOnceAndTheOpCanBeUsedAgain) {
  const HostBuffer buffer = Buffer(8192);
  IoOp op;
  Prepare(op, IoKind::kRead, kFileBytes - 4096, buffer.bytes());
  engine().Submit(op);
  EXPECT_FALSE(engine().Wait(op).ok());
  EXPECT_TRUE(engine().Wait(op).ok());
  op.offset_bytes = 0;
  engine().Submit(op);
  EXPECT_TRUE(engine().Wait(op).ok());
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
  const absl::Status first = engine().Flush(file_);
  EXPECT_EQ(ExitCodeOf(first), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(first), HasSubstr(path_));
  const absl::Status second = engine().Flush(file_);
  EXPECT_EQ(ExitCodeOf(second), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(second), HasSubstr("earlier flush"));
  EXPECT_EQ(script().num_calls(), 1) << "the kernel would answer OK, so it must not be asked";
}

// The simulated disk moves its bytes on this thread, which takes signals.
class KernelEngineTest : public EngineTest {};

TEST_P(KernelEngineTest, AFileSizeLimitIsAnErrorAndNotADeadlySignal) {
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
  ASSERT_TRUE(engine().Flush(file_).ok());
  const IoStats stats = engine().stats();
  EXPECT_EQ(stats.write_bytes, 12288);
  EXPECT_EQ(stats.write_ops, 1);
  EXPECT_EQ(stats.read_bytes, 4096);
  EXPECT_EQ(stats.submitted_read_bytes, 4096 + 12288) << "failed or not";
  EXPECT_EQ(stats.read_ops, 1);
  EXPECT_EQ(stats.flushes, 1);
}

TEST_P(EngineTest, ARemovedFileIsClosed) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd reader(fds[0]);
  const int file = engine().AddFile(UniqueFd(fds[1]), "pipe");
  engine().RemoveFile(file);
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0) << "the writing end is closed";
}

TEST_P(EngineTest, EndingTheEngineCompletesWhatWasQueued) {
  const HostBuffer buffer = Buffer(kFileBytes);
  FillRandom(buffer.bytes(), 3);
  std::array<IoOp, 16> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], IoKind::kWrite, i * 65536, buffer.bytes().subspan(i * 65536, 65536));
    engine().Submit(ops[i]);
  }
  EndEngine();
  for (IoOp& op : ops) EXPECT_FALSE(op.pending());
  const auto contents = ReadWholeFile(path_, kFileBytes);
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(std::memcmp(contents->data(), buffer.data(), kFileBytes), 0);
}

TEST_P(EngineTest, AFlushIsAnOpLikeOthers) {
  const HostBuffer buffer = Buffer(4096);
  ASSERT_TRUE(Run(IoKind::kWrite, 0, buffer.bytes()).ok());
  IoOp flush;
  flush.kind = IoKind::kFlush;
  flush.file = file_;
  engine().Submit(flush);
  EXPECT_TRUE(engine().Wait(flush).ok());
  EXPECT_EQ(engine().stats().flushes, 1);
}

TEST_P(EngineTest, ReadsAndWritesAtOnceEachReachTheirOwnPlace) {
  constexpr int kNumOps = 16;
  constexpr int64_t kOpBytes = kFileBytes / 2 / kNumOps;
  const HostBuffer before = Buffer(kFileBytes / 2);
  const HostBuffer written = Buffer(kFileBytes / 2);
  const HostBuffer read = Buffer(kFileBytes / 2);
  FillRandom(before.bytes(), 5);
  FillRandom(written.bytes(), 6);
  ASSERT_TRUE(Run(IoKind::kWrite, 0, before.bytes()).ok());
  std::array<IoOp, 2 * kNumOps> ops;
  for (int i = 0; i < kNumOps; ++i) {
    Prepare(ops[2 * i], IoKind::kWrite, kFileBytes / 2 + i * kOpBytes,
            written.bytes().subspan(i * kOpBytes, kOpBytes));
    Prepare(ops[2 * i + 1], IoKind::kRead, i * kOpBytes,
            read.bytes().subspan(i * kOpBytes, kOpBytes));
    ops[2 * i + 1].io_class = i % 2 == 0 ? IoClass::kPrefetch : IoClass::kDemand;
    engine().Submit(ops[2 * i]);
    engine().Submit(ops[2 * i + 1]);
  }
  for (IoOp& op : ops) EXPECT_EQ(engine().Wait(op), absl::OkStatus());
  EXPECT_TRUE(SameBytes(read.bytes(), before.bytes()));
  ASSERT_TRUE(Run(IoKind::kRead, kFileBytes / 2, read.bytes()).ok());
  EXPECT_TRUE(SameBytes(read.bytes(), written.bytes()));
}

TEST_P(EngineTest, RegisteredBuffersMoveTheSameBytes) {
  const HostBuffer written = Buffer(int64_t{4} << 20);
  const HostBuffer read = Buffer(65536);
  FillRandom(written.bytes().first(131072), 7);
  const absl::Status registered = engine().RegisterBuffers(written.bytes());
  // Refused by a memlock limit; transfers have to work all the same.
  if (!registered.ok()) {
    EXPECT_THAT(MessageOf(registered), HasSubstr("memlock"));
  }
  ASSERT_TRUE(Run(IoKind::kWrite, 0, written.bytes().subspan(65536, 65536)).ok());
  ASSERT_TRUE(Run(IoKind::kRead, 0, read.bytes()).ok());
  EXPECT_TRUE(SameBytes(read.bytes(), written.bytes().subspan(65536, 65536)));
  engine().UnregisterBuffers(written.bytes());
  ASSERT_TRUE(Run(IoKind::kRead, 0, written.bytes().first(65536)).ok());
  EXPECT_TRUE(SameBytes(read.bytes(), written.bytes().first(65536)));
}

TEST_P(EngineTest, MoreFilesThanAnyTableHasRoomForAreServed) {
  const HostBuffer buffer = Buffer(4096);
  std::vector<int> files;
  for (int i = 0; i < 70; ++i) {
    const std::string path = folder_.Path("file" + std::to_string(i));
    auto file = OpenDirectFile(path, {.create = true, .size_bytes = 4096});
    ASSERT_TRUE(file.ok()) << file.status();
    files.push_back(engine().AddFile(std::move(file->fd), path));
  }
  for (const int pass : {0, 1}) {
    for (int i = 0; i < 70; ++i) {
      if (pass == 0) FillRandom(buffer.bytes(), 300 + i);
      file_ = files[i];
      ASSERT_TRUE(Run(pass == 0 ? IoKind::kWrite : IoKind::kRead, 0, buffer.bytes()).ok());
      EXPECT_EQ(buffer.bytes()[0], static_cast<std::byte>(CounterRng(300 + i).Bits64(0)));
    }
  }
  for (const int file : files) engine().RemoveFile(file);
}

TEST_P(EngineTest, ACancelledOpEndsAndItsBufferIsFree) {
  const HostBuffer buffer = Buffer(kFileBytes);
  std::array<IoOp, 8> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], IoKind::kRead, i * 131072, buffer.bytes().subspan(i * 131072, 131072));
    engine().Submit(ops[i]);
  }
  for (IoOp& op : ops) engine().Cancel(op);
  for (IoOp& op : ops) {
    const absl::Status status = engine().Wait(op);
    if (!status.ok()) {  // else it was faster
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
      EXPECT_THAT(MessageOf(status), HasSubstr("was cancelled"));
    }
    EXPECT_TRUE(Run(IoKind::kRead, 0, op.buffer).ok());
  }
}

TEST_P(EngineTest, CancellingWhatIsNotPendingDoesNothing) {
  IoOp op;
  engine().Cancel(op);
  const HostBuffer buffer = Buffer(4096);
  Prepare(op, IoKind::kRead, 0, buffer.bytes());
  engine().Submit(op);
  EXPECT_TRUE(engine().Wait(op).ok());
  engine().Cancel(op);
  engine().Submit(op);
  EXPECT_TRUE(engine().Wait(op).ok());
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineTest, testing::ValuesIn(AllCases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(Engines, KernelEngineTest,
                         testing::ValuesIn(Without(Under::kSimulatedDisk, AllCases())),
                         [](const auto& c) { return c.param.name; });

TEST(EngineDeathTest, AMisalignedOpIsABug) {
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
  EXPECT_DEATH(submit(512, all), "align_bytes");
  EXPECT_DEATH(submit(0, all.first(512)), "align_bytes");
  EXPECT_DEATH(submit(0, all.subspan(8, 4096)), "align_bytes");
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
