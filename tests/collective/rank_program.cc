// One rank of a test that runs ranks as processes: rank_program <timeout in s> <what to do>...
//   cases              every case of the suite; failures are gtest's
//   kill|hang|abort R  calls without end, until rank R does that; prints what the others' calls say
//   bandwidth BYTES    times all-reduces of so many bytes; rank 0 prints GB/s
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/collective/connect/connect.h"
#include "forebay/tests/collective/collective_cases.h"
#include "forebay/tests/collective/rank_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

Communicator* ranks_of_program = nullptr;

TEST(EveryCase, Passes) {
  for (const CollectiveCase& one : CollectiveCases()) {
    SCOPED_TRACE(one.name);
    one.run(*ranks_of_program);
  }
}

int CallWithoutEnd(Communicator& ranks, const std::string& fate, int rank) {
  std::vector<float> values(4000);
  for (int call = 0;; ++call) {
    if (call == 20 && ranks.rank() == rank) {
      if (fate == "kill") ::raise(SIGKILL);
      if (fate == "hang") ::raise(SIGSTOP);
      ranks.Abort(StorageError("the disk is gone"));
    }
    const absl::Status status = ranks.AllReduce(values);
    if (status.ok()) continue;
    std::printf("[%d] %s\n", ranks.rank(), MessageOf(status).c_str());
    std::fflush(stdout);
    return static_cast<int>(ExitCodeOf(status));
  }
}

int MeasureBandwidth(Communicator& ranks, size_t size_bytes) {
  constexpr int kNumCalls = 10;
  std::vector<float> values(size_bytes / 4, 1.0F);
  std::vector<double> seconds;
  for (int call = 0; call < kNumCalls; ++call) {
    if (!ranks.Barrier().ok()) return 1;
    const Stopwatch stopwatch;
    if (!ranks.AllReduce(values).ok()) return 1;
    seconds.push_back(stopwatch.Seconds());
  }
  std::sort(seconds.begin(), seconds.end());
  if (ranks.rank() == 0) {
    std::printf("all-reduce of %zu bytes on %d ranks: %.3f s, %.2f GB/s of the vector\n",
                size_bytes, ranks.size(), seconds[kNumCalls / 2],
                static_cast<double>(size_bytes) / seconds[kNumCalls / 2] * 1e-9);
  }
  return 0;
}

int Run(int argc, char** argv) {
  const std::string what = argv[2];
  const auto launch = DetectLaunch(ProcessEnvironment);
  if (!launch.ok()) {
    std::printf("%s\n", MessageOf(launch.status()).c_str());
    return static_cast<int>(ExitCodeOf(launch.status()));
  }
  CommunicatorOptions options = {.timeout_s = std::atof(argv[1]), .device = &DeviceOfTests()};
  if (what != "bandwidth") options.scratch_bytes = kTestScratchBytes;
  const auto ranks = ConnectRanks(*launch, options);
  if (!ranks.ok()) {
    std::printf("%s\n", MessageOf(ranks.status()).c_str());
    return static_cast<int>(ExitCodeOf(ranks.status()));
  }
  if (what == "bandwidth") return MeasureBandwidth(**ranks, std::stoull(argv[3]));
  if (what != "cases") return CallWithoutEnd(**ranks, what, std::atoi(argv[3]));
  ranks_of_program = ranks->get();
  ::testing::InitGoogleMock(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  if (failed == 0) std::printf("rank %d of %d passed\n", launch->rank, launch->size);
  return failed;
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  return forebay::Run(argc, argv);
}
