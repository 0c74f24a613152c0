// What every engine does on a device that stops answering: it says so, it ends what it can, and
// nothing waits for ever.
#include <fcntl.h>

#include <array>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class EngineStallTest : public EngineFixture {
 protected:
  void SetUp() override {}
  void TearDown() override {
    // A thread that was left in its call must come back before the memory of the test goes.
    if (script_ != nullptr) script_->ReleaseStalled();
    EndEngine();
  }

  void StartStalling(const FaultPlan& faults) {
    EngineCase c = GetParam();
    c.options.stall_report_s = 0.05;
    c.options.stall_limit_s = 0.3;
    c.options.report = [this](const std::string& line) { lines_.push_back(line); };
    Start(c, faults);
    if (!IsSkipped()) script_ = script_ptr();
  }
  // Asks something of whoever drives the engine, who then looks at the disk as well.
  void LetItRun() {
    UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    engine().RemoveFile(engine().AddFile(std::move(fd), path_));
  }

  std::shared_ptr<FaultScript> script_;
  std::vector<std::string> lines_;  // reported by the thread that waits: this one
};

TEST_P(EngineStallTest, AStalledDeviceIsReportedOnceAndThenGivenUp) {
  StartStalling({.stall_call = 0});
  if (IsSkipped()) return;
  const HostBuffer buffer = Buffer(4096);
  const absl::Status status = Run(IoKind::kRead, 8192, buffer.bytes());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("read of 4096 bytes at 8192 of '" + path_ + "'"),
                                       HasSubstr("completed nothing for"), HasSubstr("dmesg")));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], AllOf(HasSubstr("has completed nothing for"), HasSubstr(path_)));
}

// A thread in a system call cannot be called back.
class CancellingEngineTest : public EngineStallTest {};

TEST_P(CancellingEngineTest, WhatTheKernelHandsBackLeavesTheDeviceUsable) {
  StartStalling({.stall_call = 0});
  if (IsSkipped()) return;
  const HostBuffer buffer = Buffer(4096);
  EXPECT_FALSE(Run(IoKind::kRead, 0, buffer.bytes()).ok());
  EXPECT_TRUE(Run(IoKind::kRead, 0, buffer.bytes()).ok());
}

TEST_P(EngineStallTest, WhatTheKernelKeepsClosesTheDeviceUntilItComesBack) {
  StartStalling({.stall_call = 0, .stall_returns = false});
  if (IsSkipped()) return;
  const HostBuffer buffer = Buffer(8192);
  const absl::Status first = Run(IoKind::kRead, 0, buffer.bytes().first(4096));
  EXPECT_THAT(MessageOf(first), HasSubstr("the kernel did not hand the transfer back"));
  const absl::Status second = Run(IoKind::kWrite, 4096, buffer.bytes().last(4096));
  EXPECT_EQ(ExitCodeOf(second), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(second), AllOf(HasSubstr("write of 4096 bytes at 4096"),
                                       HasSubstr("was not started"), HasSubstr("stalled")));
  script().ReleaseStalled();
  const Stopwatch watch;
  absl::Status later = second;
  while (!later.ok() && watch.Seconds() < 20) {
    // A simulated disk, and a port that sleeps, notice the release at their next run.
    LetItRun();
    later = Run(IoKind::kWrite, 4096, buffer.bytes().last(4096));
  }
  EXPECT_TRUE(later.ok()) << later;
}

TEST_P(EngineStallTest, WhatQueuesBehindAStalledOpFailsWithIt) {
  StartStalling({.stall_call = 0, .stall_returns = false});
  if (IsSkipped()) return;
  const HostBuffer buffer = Buffer(kFileBytes);
  std::array<IoOp, 16> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], IoKind::kRead, i * 65536, buffer.bytes().subspan(i * 65536, 65536));
    engine().Submit(ops[i]);
  }
  const Stopwatch watch;
  int num_failed = 0;  // with several threads, any of them may make the call that stalls
  for (IoOp& op : ops) num_failed += engine().Wait(op).ok() ? 0 : 1;
  EXPECT_GE(num_failed, 1);
  EXPECT_LT(watch.Seconds(), 10);
}

TEST_P(CancellingEngineTest, AStalledOpCanBeCancelled) {
  EngineCase patient = GetParam();
  Start(patient, {.stall_call = 0});
  if (IsSkipped()) return;
  const HostBuffer buffer = Buffer(4096);
  IoOp op;
  Prepare(op, IoKind::kRead, 0, buffer.bytes());
  engine().Submit(op);
  // A simulated disk is driven by whoever asks something of it.
  while (script().num_calls() == 0) LetItRun();
  engine().Cancel(op);
  EXPECT_EQ(ExitCodeOf(engine().Wait(op)), ExitCode::kInterrupted);
  EXPECT_TRUE(Run(IoKind::kRead, 0, buffer.bytes()).ok());
}

TEST_P(EngineStallTest, AStalledFlushIsAFailedOne) {
  StartStalling({.stall_call = 0});
  if (IsSkipped()) return;
  EXPECT_EQ(ExitCodeOf(engine().Flush(file_)), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(engine().Flush(file_)), HasSubstr("aio:"));
  EXPECT_FALSE(engine().Flush(file_).ok()) << "nobody knows what it did";
}

TEST_P(EngineStallTest, TheEndOfAnEngineDoesNotWaitForEver) {
  StartStalling({.stall_call = 1, .stall_returns = false});
  if (IsSkipped()) return;
  const HostBuffer buffer = Buffer(65536);
  std::array<IoOp, 8> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], IoKind::kWrite, i * 8192, buffer.bytes().subspan(i * 8192, 8192));
    engine().Submit(ops[i]);
  }
  const Stopwatch watch;
  EndEngine();
  EXPECT_LT(watch.Seconds(), 15);
  for (IoOp& op : ops) EXPECT_FALSE(op.pending());
}

// Looks at its arguments only when it is let go: a thread that gets no CPU for long.
class LateCalls : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind, int, std::string_view path, std::span<std::byte> buffer,
                   int64_t) override {
    entered_.count_down();
    go_.wait();
    seen_ = path;
    done_.count_down();
    return static_cast<int64_t>(buffer.size());
  }
  void AwaitCall() { entered_.wait(); }
  std::string LetGo() {
    go_.count_down();
    done_.wait();
    return seen_;
  }

 private:
  std::latch entered_{1}, go_{1}, done_{1};
  std::string seen_;
};

TEST(EngineStall, ACallThatOutlastsItsEngineStillKnowsItsFile) {
  const auto calls = std::make_shared<LateCalls>();
  EngineOptions options;
  options.num_threads = 1;
  options.stall_report_s = 0.05;
  options.stall_limit_s = 0.1;
  std::unique_ptr<Engine> engine = CreateThreadsEngine(options, calls);
  const TemporaryFolder folder;
  const std::string path = folder.Path("file");
  auto file = OpenDirectFile(path, {.create = true, .size_bytes = 4096});
  ASSERT_TRUE(file.ok()) << file.status();
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", 4096);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  IoOp op;
  op.file = engine->AddFile(std::move(file->fd), path);
  op.buffer = buffer->bytes();
  engine->Submit(op);
  calls->AwaitCall();
  EXPECT_FALSE(engine->Wait(op).ok());
  engine.reset();
  EXPECT_EQ(calls->LetGo(), path);
}

TEST(EngineStall, TimeInWhichTheProcessStoodStillIsNotTheDevices) {
  std::vector<std::string> lines;
  EngineOptions options;
  options.report = [&lines](const std::string& line) { lines.push_back(line); };
  const auto script = std::make_shared<FaultScript>(FaultPlan{.stall_call = 0});
  const auto engine = CreateSimulatedEngine(options, {.pause_us = 3'600'000'000}, script);
  const TemporaryFolder folder;
  auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 4096});
  ASSERT_TRUE(file.ok()) << file.status();
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", 4096);
  IoOp op;
  op.file = engine->AddFile(std::move(file->fd), folder.Path("file"));
  op.buffer = buffer->bytes();
  engine->Submit(op);
  EXPECT_FALSE(engine->Wait(op).ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("has completed nothing for 15")) << "and not for an hour";
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineStallTest, testing::ValuesIn(PlainCases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(Engines, CancellingEngineTest,
                         testing::ValuesIn(Without(Under::kThreads, PlainCases())),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace forebay
