#include "forebay/train/start/gpu_of_rank.h"

#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RankDevice OnGpu(const std::string& host, const std::string& id, int num_gpus = 2) {
  return {.host = host, .gpu_id = id, .num_gpus = num_gpus};
}
RankDevice OnCpu(const std::string& host) {
  return {.host = host, .why_cpu = "there is no driver"};
}
std::string Refused(const std::vector<RankDevice>& ranks, bool may_share = false) {
  const absl::Status status = CheckDevices(ranks, may_share);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  return MessageOf(status);
}

TEST(DevicesOfRanks, EachHasAGpuOfItsOwnOrNoneHas) {
  EXPECT_TRUE(CheckDevices(std::vector{OnGpu("a", "1"), OnGpu("a", "2"), OnGpu("b", "3")},
                           /*may_share=*/false)
                  .ok());
  EXPECT_TRUE(CheckDevices(std::vector{OnCpu("a"), OnCpu("a")}, /*may_share=*/false).ok());
}

TEST(DevicesOfRanks, TwoOnOneGpuAreNamedAndMayBeAllowed) {
  const std::vector<RankDevice> ranks = {OnGpu("a", "1"), OnGpu("a", "2"), OnGpu("a", "1")};
  EXPECT_THAT(Refused(ranks), AllOf(HasSubstr("rank 0 (a) and rank 2 (a)"), HasSubstr("of 2 that"),
                                    HasSubstr("LOCAL_RANK"), HasSubstr("--share_gpu")));
  EXPECT_TRUE(CheckDevices(ranks, /*may_share=*/true).ok());
}

TEST(DevicesOfRanks, OneThatHasNoneIsNamedWithTheReason) {
  for (const bool may_share : {false, true}) {
    EXPECT_THAT(Refused({OnGpu("a", "1"), OnGpu("a", "2"), OnCpu("b")}, may_share),
                AllOf(HasSubstr("rank 0 (a) would compute on a GPU"),
                      HasSubstr("rank 2 (b) on the CPU: there is no driver")));
    EXPECT_THAT(Refused({OnCpu("b"), OnGpu("a", "1")}, may_share),
                AllOf(HasSubstr("rank 1 (a) would compute on a GPU"),
                      HasSubstr("rank 0 (b) on the CPU: there is no driver")));
  }
}

}  // namespace
}  // namespace forebay
