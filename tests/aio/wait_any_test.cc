// Many ops kept in flight by one caller, each used again as soon as it is complete: WaitAny, and
// engines that are driven by whoever waits.
#include <algorithm>
#include <array>
#include <vector>

#include "forebay/tests/aio/engine_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class WaitAnyTest : public EngineFixture {};

std::vector<EngineCase> WaitAnyCases() {
  std::vector<EngineCase> cases = PlainCases();
  EngineOptions waiter;
  waiter.drive = RingDrive::kWaiter;
  cases.push_back({"IoUringOfTheWaiter", Under::kIoUring, waiter, {}});
  cases.push_back({"LibaioOfTheWaiter", Under::kLibaio, waiter, {}});
  return cases;
}

TEST_P(WaitAnyTest, ReturnsAtOnceWithoutOpsAndForOnesThatAreNotPending) {
  engine().WaitAny({});
  IoOp op;
  IoOp* const ops[] = {&op};
  engine().WaitAny(ops);
  EXPECT_TRUE(engine().Wait(op).ok());
}

TEST_P(WaitAnyTest, EveryOpThatIsKeptInFlightReachesItsPlace) {
  constexpr size_t kNumOps = 8;
  constexpr int64_t kOpBytes = 16384;
  constexpr int64_t kNumPlaces = kFileBytes / kOpBytes;
  const HostBuffer buffer = Buffer(static_cast<int64_t>(kNumOps) * kOpBytes);
  std::array<IoOp, kNumOps> ops;
  std::array<IoOp*, kNumOps> all;
  int64_t next_place = 0;
  const auto submit = [&](size_t i) {
    const auto bytes = buffer.bytes().subspan(i * kOpBytes, kOpBytes);
    Prepare(ops[i], IoKind::kWrite, next_place * kOpBytes, bytes);
    FillRandom(bytes, static_cast<uint64_t>(next_place));
    ++next_place;
    engine().Submit(ops[i]);
  };
  for (size_t i = 0; i < kNumOps; ++i) {
    all[i] = &ops[i];
    submit(i);
  }
  while (next_place < kNumPlaces) {
    engine().WaitAny(all);
    ASSERT_FALSE(std::ranges::all_of(ops, [](const IoOp& op) { return op.pending(); }));
    for (size_t i = 0; i < kNumOps && next_place < kNumPlaces; ++i) {
      if (ops[i].pending()) continue;
      ASSERT_EQ(engine().Wait(ops[i]), absl::OkStatus());
      submit(i);
    }
  }
  for (IoOp& op : ops) ASSERT_EQ(engine().Wait(op), absl::OkStatus());
  const HostBuffer read = Buffer(kFileBytes);
  ASSERT_TRUE(Run(IoKind::kRead, 0, read.bytes()).ok());
  for (int64_t place = 0; place < kNumPlaces; ++place) {
    std::vector<std::byte> expected(kOpBytes);
    FillRandom(expected, static_cast<uint64_t>(place));
    EXPECT_TRUE(SameBytes(read.bytes().subspan(place * kOpBytes, kOpBytes), expected)) << place;
  }
}

TEST_P(WaitAnyTest, AnErrorIsACompletionToo) {
  const HostBuffer buffer = Buffer(8192);
  IoOp op;
  Prepare(op, IoKind::kRead, kFileBytes, buffer.bytes());
  engine().Submit(op);
  IoOp* const ops[] = {&op};
  engine().WaitAny(ops);
  EXPECT_FALSE(op.pending());
  EXPECT_FALSE(engine().Wait(op).ok());
}

// A thread in a call cannot be taken out of it; engine_stall_test.cc has what becomes of it.
class StallingWaitAnyTest : public WaitAnyTest {};

TEST_P(StallingWaitAnyTest, ADeviceThatStallsIsGivenUp) {
  EngineCase stalled = GetParam();
  stalled.options.stall_report_s = 0.05;
  stalled.options.stall_limit_s = 0.1;
  std::string reported;
  stalled.options.report = [&](const std::string& line) { reported = line; };
  Start(stalled, {.stall_call = 0});
  const HostBuffer buffer = Buffer(8192);
  IoOp op;
  Prepare(op, IoKind::kRead, 0, buffer.bytes());
  engine().Submit(op);
  IoOp* const ops[] = {&op};
  engine().WaitAny(ops);
  const absl::Status status = engine().Wait(op);
  EXPECT_THAT(std::string(status.message()), HasSubstr("completed nothing"));
  EXPECT_THAT(reported, HasSubstr("waits for it"));
}

TEST_P(WaitAnyTest, TimedSubmissionsCountEveryCall) {
  EngineCase timed = GetParam();
  timed.options.time_submissions = true;
  Start(timed, {});
  const HostBuffer buffer = Buffer(8192);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Run(IoKind::kRead, 8192 * i, buffer.bytes()).ok());
  const IoStats stats = engine().stats();
  if (GetParam().under == Under::kThreads) {
    EXPECT_EQ(stats.submitted_calls, 0);
  } else {
    EXPECT_EQ(stats.submitted_calls, 5);
    EXPECT_GT(stats.submit_ns, 0);
  }
}

TEST_P(WaitAnyTest, WithoutBeingAskedToNothingIsTimed) {
  const HostBuffer buffer = Buffer(8192);
  ASSERT_TRUE(Run(IoKind::kRead, 0, buffer.bytes()).ok());
  EXPECT_EQ(engine().stats().submitted_calls, 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, WaitAnyTest, testing::ValuesIn(WaitAnyCases()),
                         [](const auto& param_info) { return param_info.param.name; });
INSTANTIATE_TEST_SUITE_P(Engines, StallingWaitAnyTest,
                         testing::ValuesIn(Without(Under::kThreads, WaitAnyCases())),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace forebay
