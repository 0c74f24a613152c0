// A rank that dies, hangs, leaves, gives up or calls something else ends the calls of all others,
// with its number and its host.
#include <array>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/collective/rank_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNumRanks = 3;
constexpr int64_t kNumElems = 4000;  // several pieces

// One call of every kind.
absl::Status CallOfKind(Communicator& ranks, int kind) {
  std::vector<float> values(kNumElems, 1.0F);
  const auto bytes = std::as_writable_bytes(std::span(values));
  switch (kind) {
    case 0:
      return ranks.AllReduce(values);
    case 1:
      return ranks.ReduceScatter(values, EvenParts(kNumElems, ranks.size()));
    case 2:
      return ranks.AllGather(bytes, EvenParts(kNumElems * 4, ranks.size()));
    case 3:
      return ranks.Broadcast(bytes, 0);
    case 4:
      return ranks.Barrier();
    default:
      return ranks.GatherRecords(std::string(3000, 'x')).status();
  }
}
constexpr int kNumKinds = 6;

// Calls of all kinds until one fails.
absl::Status CallUntilFailure(Communicator& ranks) {
  for (int call = 0; call < 1000; ++call) {
    const absl::Status status = CallOfKind(ranks, call % kNumKinds);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string Names(Communicator& ranks, int rank) {
  return fmt::format("rank {} of {} on {}", rank, ranks.size(), ranks.host(rank));
}

// ---- Faults of a thread's transport, before each of its exchanges in turn -----------------------

class ThreadFaults : public ::testing::TestWithParam<ThreadFaultKind> {};

void ExpectThatAllOthersEnd(const ThreadFault& fault) {
  auto group = ConnectGroup({.transport = TransportOfTests::kThreads,
                             .num_ranks = kNumRanks,
                             .timeout_s = 1,
                             .faults = {fault}});
  const auto afflicted = static_cast<size_t>(fault.rank);
  std::vector<absl::Status> ends(kNumRanks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r] { ends[r] = CallUntilFailure(*group[r]); });
  }
  for (size_t r = 0; r < group.size(); ++r) {
    if (r != afflicted) threads[r].join();
  }
  group[afflicted]->Abort(EnvironmentError("the test is over"));  // or it would hang on
  threads[afflicted].join();
  for (size_t r = 0; r < group.size(); ++r) {
    if (r == afflicted) continue;
    EXPECT_THAT(MessageOf(ends[r]), HasSubstr(Names(*group[r], fault.rank)));
    EXPECT_EQ(ExitCodeOf(ends[r]), ExitCode::kEnvironment);
  }
  EXPECT_FALSE(ends[afflicted].ok());
}

TEST_P(ThreadFaults, EndTheCallsOfAllOthersWhereverTheyHappen) {
  std::vector<std::thread> threads;  // side by side, as they mostly wait
  for (int64_t exchange = 0; exchange < 24; ++exchange) {
    threads.emplace_back([exchange] {
      SCOPED_TRACE(fmt::format("exchange {}", exchange));
      ExpectThatAllOthersEnd({GetParam(), static_cast<int>(exchange % kNumRanks), exchange});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(OfEveryKind, ThreadFaults,
                         ::testing::Values(ThreadFaultKind::kDies, ThreadFaultKind::kHangs,
                                           ThreadFaultKind::kDrops));

// ---- What a rank does, over every transport -----------------------------------------------------

class FailedRank : public ::testing::TestWithParam<TransportOfTests> {
 protected:
  RankGroupOptions Options() const {
    return {.transport = GetParam(), .num_ranks = kNumRanks, .timeout_s = 20};
  }
};

TEST_P(FailedRank, OneThatGivesUpTellsItsReasonAndItsExitCode) {
  RunOnRanks(Options(), [](Communicator& ranks) {
    if (ranks.rank() == 2) ranks.Abort(StorageError("the disk is gone"));
    const absl::Status status = CallUntilFailure(ranks);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr(Names(ranks, 2)), HasSubstr("the disk is gone")));
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
    EXPECT_EQ(ranks.Barrier(), status) << "every later call says the same";
  });
}

TEST_P(FailedRank, OneMayGiveUpWhileItsOwnCallWaits) {
  std::latch gave_up(1);  // without it a loaded machine lets the call end before
  RunOnRanks(Options(), [&gave_up](Communicator& ranks) {
    std::vector<float> values(kNumElems);
    if (ranks.rank() == 0) {
      const CollectiveTicket ticket = ranks.StartAllReduce(OnHost(std::span(values)));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ranks.Abort(NumericalError("the loss is not finite"));
      gave_up.count_down();
      EXPECT_EQ(ExitCodeOf(ranks.Await(ticket)), ExitCode::kNumerical);
      return;
    }
    gave_up.wait();
    const absl::Status status = ranks.AllReduce(values);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr(Names(ranks, 0)), HasSubstr("the loss is not finite")));
  });
}

TEST_P(FailedRank, OneThatLeavesIsNamed) {
  for (int kind = 0; kind < kNumKinds; ++kind) {
    RunOnRanks(Options(), [kind](Communicator& ranks) {
      absl::Status status = ranks.Barrier();
      if (ranks.rank() == 1) return;
      // A rank that finds it in the next call may tell a rank that is still in this one.
      if (status.ok()) status = CallOfKind(ranks, kind);
      EXPECT_THAT(MessageOf(status), HasSubstr(Names(ranks, 1))) << kind;
    });
  }
}

TEST_P(FailedRank, OneThatIsSilentIsNamedWhenTheTimeIsOver) {
  RankGroupOptions options = Options();
  options.timeout_s = 0.1;
  auto group = ConnectGroup(options);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      EXPECT_THAT(MessageOf(group[r]->Barrier()),
                  AllOf(HasSubstr(Names(*group[r], 2)), HasSubstr("--set=rank_timeout")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(FailedRank, CallsThatDifferAreAnErrorThatNamesBoth) {
  const auto fails = [this](const auto& differ, const char* its_call, const char* other_call) {
    RunOnRanks(Options(), [&](Communicator& ranks) {
      const absl::Status status = differ(ranks, ranks.rank() == 1);
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("made another call"), HasSubstr(its_call),
                                           HasSubstr(other_call)));
    });
  };
  fails(
      [](Communicator& ranks, bool other) {
        std::vector<float> own(100);
        return other ? ranks.Barrier() : ranks.AllReduce(own);
      },
      "barrier", "all-reduce of 100 fp32 values");
  fails(
      [](Communicator& ranks, bool other) {
        std::vector<float> own(other ? 99 : 100);
        return ranks.AllReduce(own);
      },
      "all-reduce of 99 fp32 values", "all-reduce of 100 fp32 values");
  fails(
      [](Communicator& ranks, bool other) {
        std::vector<float> own(100);
        return ranks.ReduceScatter(own, std::array<int64_t, 4>{0, other ? 1 : 2, 3, 100});
      },
      "reduce-scatter of 100 fp32 values in parts", "reduce-scatter of 100 fp32 values in parts");
  fails(
      [](Communicator& ranks, bool other) {
        std::vector<std::byte> own(17);
        return ranks.Broadcast(own, other ? 2 : 0);
      },
      "broadcast of 17 bytes from rank 2", "broadcast of 17 bytes from rank 0");
  // Layers may be of one size.
  fails(
      [](Communicator& ranks, bool other) {
        std::vector<std::byte> own(9);
        CollectiveMemory memory = OnHost(std::span(own));
        memory.layer = other ? 4 : 5;
        return ranks.Await(ranks.StartAllGather(memory, std::array<int64_t, 4>{0, 3, 6, 9}));
      },
      "all-gather of 9 bytes of layer 4", "all-gather of 9 bytes of layer 5");
}

INSTANTIATE_TEST_SUITE_P(OverAll, FailedRank,
                         ::testing::Values(TransportOfTests::kThreads,
                                           TransportOfTests::kSlowThreads,
                                           TransportOfTests::kSockets),
                         [](const ::testing::TestParamInfo<TransportOfTests>& parameter) {
                           return NameOf(parameter.param);
                         });

}  // namespace
}  // namespace forebay
