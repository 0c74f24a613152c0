#include "forebay/measure/load/pass.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <numeric>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faults/limited_disk.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/aio/registering_port.h"
#include "forebay/tests/measure/bench_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class PassTest : public testing::Test {
 protected:
  // Makes the file, filled with the pattern, and the plan of `job_` on it.
  void Prepare(EngineKind kind, bool direct) {
    auto file = BenchFile::Create(folder_.path(), job_.size_bytes, direct, job_.verify);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    plan_.job = &job_;
    plan_.engine = kind;
    plan_.files = {&file_};
    plan_.stripe = {0};
    plan_.pattern = &pattern_;
    for (int i = 0; i < job_.threads; ++i) {
      auto buffer = HostBuffer::Create(&budget_, "test", LoadMemoryBytes(job_, i, 1));
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      memory_.push_back(*std::move(buffer));
    }
    Fill();
  }
  void Fill() {
    const auto engine = CreateThreadsEngine({});
    FilePass pass;
    pass.kind = IoKind::kWrite;
    pass.block_bytes = kTestBlockBytes;
    pass.memory = memory_[0].bytes();
    pass.use = [&](int64_t offset, std::span<std::byte> buffer) {
      pattern_.Fill(buffer, file_.NextPlace(offset, static_cast<int64_t>(buffer.size())));
    };
    pass.stop = [] { return false; };
    ASSERT_EQ(RunFilePass(*engine, file_, pass), absl::OkStatus());
  }
  absl::StatusOr<PassResult> Run(const LoadKind& load) {
    plan_.load = load;
    return RunPass(plan_, memory_, hooks_);
  }
  // As long as this machine needs for more than `num_ops`, whatever else it does.
  absl::StatusOr<PassResult> RunMoreThan(int64_t num_ops, const LoadKind& load) {
    absl::StatusOr<PassResult> pass = Run(load);
    for (; pass.ok() && pass->all_ops <= num_ops && job_.seconds < 30; pass = Run(load)) {
      job_.seconds *= 2;
    }
    return pass;
  }

  TemporaryFolder folder_;
  Job job_ = SmallJob(folder_.path());
  MemoryBudget budget_{0};
  const BlockPattern pattern_{1, 0};
  BenchFile file_;
  std::vector<HostBuffer> memory_;
  LoadPlan plan_;
  PassHooks hooks_;
};

class EnginePassTest : public PassTest, public testing::WithParamInterface<EngineKind> {
 protected:
  void Prepare() {
    const std::string why_not = WhyNotHere(GetParam(), folder_.path());
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    PassTest::Prepare(GetParam(), GetParam() != EngineKind::kBuffered);
  }
};

void ExpectSound(const PassResult& pass) {
  // On a disk that is busy otherwise, the measured time may see nothing complete.
  EXPECT_GT(pass.all_ops, 0);
  EXPECT_LE(pass.read_bytes, pass.all_read_bytes);
  EXPECT_LE(pass.write_bytes, pass.all_write_bytes);
  EXPECT_EQ(pass.latency.count(), pass.bytes() / kTestBlockBytes);
  EXPECT_EQ(pass.all_ops, (pass.all_read_bytes + pass.all_write_bytes) / kTestBlockBytes);
  EXPECT_NEAR(pass.seconds, 0.1, 1e-6);
  EXPECT_GE(pass.all_seconds, 0.12);
  EXPECT_GT(pass.cpu_s, 0);
  EXPECT_EQ(std::accumulate(pass.series.begin(), pass.series.end(), int64_t{0}), pass.bytes());
}

TEST_P(EnginePassTest, ReadsForTheSetTime) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  ExpectSound(*pass);
  EXPECT_EQ(pass->all_write_bytes, 0);
  EXPECT_FALSE(pass->flush_s.has_value());
}

TEST_P(EnginePassTest, WritesAndTimesTheFlushApart) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kWrite, 0});
  ASSERT_TRUE(pass.ok()) << pass.status();
  ExpectSound(*pass);
  EXPECT_EQ(pass->all_read_bytes, 0);
  ASSERT_TRUE(pass->flush_s.has_value());
  EXPECT_LE(pass->flushed_bytes_per_s(), pass->bytes_per_s());
}

TEST_P(EnginePassTest, MixesReadsAndWritesAsAsked) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kMixed, 75});
  ASSERT_TRUE(pass.ok()) << pass.status();
  ExpectSound(*pass);
  const double share = static_cast<double>(pass->all_read_bytes) /
                       static_cast<double>(pass->all_read_bytes + pass->all_write_bytes);
  // Exact but for what is in flight in the last turn.
  EXPECT_NEAR(share, 0.75, 0.75 * 4 / static_cast<double>(pass->all_ops) + 0.01);
}

TEST_P(EnginePassTest, SeveralThreadsShareTheDepth) {
  job_.threads = 3;
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  ExpectSound(*pass);
}

TEST_P(EnginePassTest, RandomReadsVerifyWhatTheyRead) {
  job_.verify = true;
  job_.pattern = AccessPattern::kRandom;
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kMixed, 50});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_EQ(pass->verified.num_blocks, pass->all_read_bytes / kPatternBlockBytes);
  EXPECT_EQ(pass->verified.num_bad(), 0) << pass->verified.first_problem;
}

TEST_P(EnginePassTest, FlushesEveryNWrites) {
  job_.flush = FlushRule::kEveryN;
  job_.flush_every = 2;
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kWrite, 0});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_GT(pass->all_write_bytes, 0);
}

TEST_P(EnginePassTest, AStopEndsItEarly) {
  job_.seconds = 3600;
  ASSERT_NO_FATAL_FAILURE(Prepare());
  int num_asked = 0;
  hooks_.stop = [&] { return ++num_asked > 2; };
  const auto pass = Run({LoadOp::kWrite, 0});
  EXPECT_EQ(ExitCodeOf(pass.status()), ExitCode::kInterrupted);
}

TEST_P(EnginePassTest, HasABandwidthFromTheWarmUpOn) {
  job_.warmup_s = 0.4;  // of 0.5
  ASSERT_NO_FATAL_FAILURE(Prepare());
  double warm_up_rate = 0;
  hooks_.progress = [&](double fraction, double bytes_per_s) {
    if (fraction < 0.8) warm_up_rate = std::max(warm_up_rate, bytes_per_s);
  };
  ASSERT_TRUE(Run({LoadOp::kRead, 100}).ok());
  EXPECT_GT(warm_up_rate, 0);
}

TEST_P(EnginePassTest, ASteadyBandwidthEndsItEarly) {
  job_.seconds = 60;
  job_.steady = SteadyRule{.max_trend = 1e9, .window_s = 0.5};
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_TRUE(pass->steady);
  EXPECT_LT(pass->seconds, 30);
}

TEST_P(EnginePassTest, TheKernelsCountersAgreeOnDirectTransfers) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const auto pass = Run({LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  if (!pass->process_io.has_value()) GTEST_SKIP() << "this kernel does not count";
  EXPECT_EQ(pass->process_io->read_bytes, pass->all_read_bytes);
}

INSTANTIATE_TEST_SUITE_P(Engines, EnginePassTest, testing::ValuesIn(EngineKinds()),
                         [](const auto& c) { return std::string(NameOf(c.param)); });

// What a file system does not do at once it leaves to io_uring's workers: filling holes, on ext4
// and XFS, but not overwriting.
TEST_F(PassTest, WhatIoUringLeavesToItsWorkersIsSeen) {
  const std::string why_not = WhyNotHere(EngineKind::kIoUring, folder_.path());
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  job_.size_bytes = int64_t{64} << 20;
  job_.warmup_s = 0;
  Prepare(EngineKind::kIoUring, true);
  const auto over = Run({LoadOp::kWrite, 0});
  ASSERT_TRUE(over.ok()) << over.status();
  if (over->punted_bytes < 0) GTEST_SKIP() << "this kernel does not count the bytes of threads";
  const UniqueFd fd(::open(file_.PathForOthers().c_str(), O_RDWR | O_CLOEXEC));
  constexpr int kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (::fallocate(fd.get(), kHole, 0, job_.size_bytes) != 0) GTEST_SKIP() << "no holes here";
  job_.seconds = 0.02;  // not once around, or it would overwrite again
  const auto into_holes = Run({LoadOp::kWrite, 0});
  ASSERT_TRUE(into_holes.ok()) << into_holes.status();
  if (into_holes->punted_bytes == 0) GTEST_SKIP() << "this file system fills holes at once";
  const auto share = [](const PassResult& pass) {
    return static_cast<double>(pass.punted_bytes) / static_cast<double>(pass.all_write_bytes);
  };
  EXPECT_GT(share(*into_holes), share(*over));
}

// ---- On a simulated disk

class FaultyPassTest : public PassTest {
 protected:
  // Its clock runs as fast as it is driven, so that many operations fit into a short pass.
  void Prepare(const FaultPlan& faults) {
    PassTest::Prepare(EngineKind::kThreads, false);
    plan_.make_engine = [faults](const EngineOptions& options) {
      return CreateSimulatedEngine(options, {}, std::make_shared<FaultScript>(faults));
    };
  }
};

TEST_F(FaultyPassTest, TheFirstErrorEndsThePassForAllThreads) {
  job_.seconds = 3600;
  job_.threads = 2;
  Prepare({.fail_call = 20});
  const auto pass = Run({LoadOp::kWrite, 0});
  EXPECT_EQ(ExitCodeOf(pass.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(pass.status()), HasSubstr("EIO"));
}

TEST_F(FaultyPassTest, ABitThatFlipsInAReadIsFound) {
  job_.verify = true;
  Prepare({.flip_call = 10});
  const auto pass = RunMoreThan(20, {LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_EQ(pass->verified.num_damaged, 1) << pass->verified.first_problem;
}

TEST_F(FaultyPassTest, AStaleBlockIsFoundWhileReading) {
  job_.verify = true;
  Prepare({});
  file_.NextPlace(kTestBlockBytes, kTestBlockBytes);  // a write that the disk never saw
  const auto pass = RunMoreThan(20, {LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_GT(pass->verified.num_stale, 0);
  EXPECT_EQ(pass->verified.num_stale, pass->verified.num_bad());
}

TEST_F(FaultyPassTest, AnEngineThatCannotBeMadeIsTheErrorOfThePass) {
  Prepare({});
  plan_.make_engine = [](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
    return EnvironmentError("no engine today");
  };
  EXPECT_EQ(MessageOf(Run({LoadOp::kRead, 100}).status()), "no engine today");
}

TEST_F(FaultyPassTest, OperationsNeverOverlap) {
  // Sixteen blocks for four operations: random offsets would often meet.
  job_.pattern = AccessPattern::kRandom;
  job_.size_bytes = 16 * kTestBlockBytes;
  job_.verify = true;
  Prepare({});
  const auto pass = RunMoreThan(100, {LoadOp::kMixed, 50});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_GT(pass->all_ops, 100);
  EXPECT_EQ(pass->verified.num_bad(), 0) << pass->verified.first_problem;
}

// Each thread has an engine and a buffer of its own, and one limit counts them together.
TEST_F(FaultyPassTest, BuffersThatAreNotRegisteredAreToldForAllThreadsTogether) {
  job_.threads = 2;
  job_.block_bytes = 1 << 20;
  job_.size_bytes = 16 << 20;
  Prepare({});
  const auto log = std::make_shared<RegistrationLog>();
  log->refuse = [](std::span<std::byte>) { return ENOMEM; };
  plan_.make_engine = [log](const EngineOptions& options) {
    return absl::StatusOr<std::unique_ptr<Engine>>(CreateRegisteringEngine(options, log, [] {
      return absl::StatusOr<std::unique_ptr<IoPort>>(MakeSimulatedDisk({}));
    }));
  };
  const auto pass = Run({LoadOp::kRead, 100});
  ASSERT_TRUE(pass.ok()) << pass.status();
  EXPECT_THAT(pass->not_registered, HasSubstr("io_uring: 4 MiB of buffers were not registered"));
}

// ---- On disks of set speeds

// One of three disks lags, and so the operations of all of them gather there.
class StripedPassTest : public PassTest {
 protected:
  void Prepare() {
    job_.size_bytes = 8 * kTestBlockBytes;
    PassTest::Prepare(EngineKind::kThreads, false);
    memory_.clear();
    for (int i = 0; i < job_.threads; ++i) {
      auto buffer = HostBuffer::Create(&budget_, "test", LoadMemoryBytes(job_, i, kNumDisks));
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      memory_.push_back(*std::move(buffer));
    }
    plan_.files.clear();
    plan_.stripe.clear();
    for (int i = 0; i < kNumDisks; ++i) {
      const std::string folder = folder_.Path(fmt::format("disk{}", i));
      ASSERT_EQ(MakeDirectories(folder), absl::OkStatus());
      auto file = BenchFile::Create(folder, job_.size_bytes, false, false);
      ASSERT_TRUE(file.ok()) << file.status();
      files_[i] = *std::move(file);
      plan_.files.push_back(&files_[i]);
      plan_.stripe.push_back(i);
    }
    plan_.make_engine = [this](const EngineOptions& options) {
      return CreateThreadsEngine(options,
                                 std::make_shared<LimitedDiskCalls>(
                                     std::vector<LimitedDisk>{{folder_.Path("disk0"), 2e6},
                                                              {folder_.Path("disk1"), 1e9},
                                                              {folder_.Path("disk2"), 1e9}}));
    };
  }

  static constexpr int kNumDisks = 3;
  BenchFile files_[kNumDisks];
};

TEST_F(StripedPassTest, ADiskThatLagsNeverTakesMoreThanItsFileHasBlocks) {
  for (const AccessPattern pattern : {AccessPattern::kSequential, AccessPattern::kRandom}) {
    job_.pattern = pattern;
    ASSERT_NO_FATAL_FAILURE(Prepare());
    const auto pass = RunMoreThan(100, {LoadOp::kRead, 100});
    ASSERT_TRUE(pass.ok()) << pass.status();
    // Far more than what fits into the file of the disk that lags: the others went on.
    EXPECT_GT(pass->all_ops, 100);
  }
}

TEST_F(StripedPassTest, FilesThatAreTooSmallForAllOperationsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  job_.depth = 9;
  EXPECT_THAT(MessageOf(Run({LoadOp::kRead, 100}).status()),
              HasSubstr("27 operations of 64.0 KiB at a time do not fit into files of 512 KiB"));
}

}  // namespace
}  // namespace forebay
