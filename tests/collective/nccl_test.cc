// NCCL's code paths on an emulated GPU, with a stand-in for the library (nccl_twin.cc).
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/collective/nccl/nccl_transport.h"
#include "forebay/tests/collective/collective_cases.h"
#include "forebay/tests/collective/rank_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

// Before anybody looks for NCCL, or for the emulated GPU: there TSan takes long for each thread.
const bool is_set = ::setenv("FOREBAY_NCCL", NCCL_TWIN, 1) == 0 &&
                    ::setenv("FOREBAY_EMULATION_TSAN_THREADS", "32", 0) == 0;

class NcclRanks : public ::testing::TestWithParam<int> {};

TEST_P(NcclRanks, MoveDeviceMemory) {
  ASSERT_TRUE(is_set);
  RunOnRanks({.num_ranks = GetParam(), .with_nccl = true},
             DeviceMemoryIsReducedAndGatheredWhenItIsReady);
}

INSTANTIATE_TEST_SUITE_P(OfAnyNumber, NcclRanks, ::testing::Values(2, 3));

// NCCL sees nothing of it: the transport beside it does.
TEST(Nccl, ARankThatGivesUpEndsTheOthersWaitForItsGpu) {
  RunOnRanks({.num_ranks = 3, .with_nccl = true}, [](Communicator& ranks) {
    constexpr int64_t kSizeBytes = 1 << 20;
    const DeviceBuffer buffer = DeviceOfTests().Allocate(kSizeBytes).value();
    const CollectiveMemory memory = OnDevice(buffer.address(), kSizeBytes, nullptr);
    std::thread giving_up;
    if (ranks.rank() == 2) {
      giving_up = std::thread([&] { ranks.Abort(StorageError("the disk is gone")); });
    }
    absl::Status status;
    while (status.ok()) status = ranks.Await(ranks.StartAllReduce(memory));
    if (giving_up.joinable()) giving_up.join();
    EXPECT_THAT(MessageOf(status), HasSubstr("the disk is gone"));
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  });
}

TEST(Nccl, ARankThatCannotUseItIsNamedOnAll) {
  auto transports = CreateThreadRanks({.num_ranks = 3});
  const std::unique_ptr<Device> host = CreateHostDevice();
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const auto nccl =
          ConnectNccl(*transports[static_cast<size_t>(r)], r == 1 ? *host : DeviceOfTests(), 60);
      EXPECT_THAT(MessageOf(nccl.status()),
                  HasSubstr("rank 1 on thread1 cannot use NCCL: its device is no GPU"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace forebay
