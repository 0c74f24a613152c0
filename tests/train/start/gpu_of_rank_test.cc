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
std::string Refused(const std::vector<RankDevice>& ranks) {
  const absl::Status status = CheckDevices(ranks);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  return MessageOf(status);
}

TEST(DevicesOfRanks, EachHasAGpuOfItsOwnOrNoneHas) {
  EXPECT_TRUE(CheckDevices(std::vector{OnGpu("a", "1"), OnGpu("a", "2"), OnGpu("b", "3")}).ok());
  EXPECT_TRUE(CheckDevices(std::vector{OnCpu("a"), OnCpu("a")}).ok());
}

TEST(DevicesOfRanks, TwoOnOneGpuAreNamed) {
  const std::vector<RankDevice> ranks = {OnGpu("a", "1"), OnGpu("a", "2"), OnGpu("a", "1")};
  EXPECT_THAT(Refused(ranks), AllOf(HasSubstr("rank 0 (a) and rank 2 (a)"), HasSubstr("of 2 that"),
                                    HasSubstr("LOCAL_RANK")));
}

TEST(DevicesOfRanks, OneThatHasNoneIsNamedWithTheReason) {
  EXPECT_THAT(Refused({OnGpu("a", "1"), OnGpu("a", "2"), OnCpu("b")}),
              AllOf(HasSubstr("rank 0 (a) would compute on a GPU"),
                    HasSubstr("rank 2 (b) on the CPU: there is no driver")));
  EXPECT_THAT(Refused({OnCpu("b"), OnGpu("a", "1")}),
              AllOf(HasSubstr("rank 1 (a) would compute on a GPU"),
                    HasSubstr("rank 0 (b) on the CPU: there is no driver")));
}

}  // namespace
}  // namespace forebay
