// A step takes no memory: what it works in was taken before the first one, however many steps there
// are.
#include <string>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "forebay/tests/allocation_counter.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Each;

// Layers of 100 KB and more, so that whatever has the size of a gradient, of weights or of a tile
// is large. Lines of logs and records are not.
class RankAllocations : public testing::TestWithParam<int> {
 protected:
  int64_t OfRun(const std::string& name, int stage, int steps) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.batch = 4;
    options.accum = 2;
    options.zero_stage = stage;
    options.steps = steps;
    options.commit_every = 1;
    options.clip = 0.5;
    const int64_t before = num_large_allocations;
    EXPECT_THAT(TrainRanks(options), Each(absl::OkStatus()));
    return num_large_allocations - before;
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path(), 2, 1024};
};

TEST_P(RankAllocations, DoNotGrowWithTheStepsOfARun) {
  OfRun("first", GetParam(), 2);  // what a process takes once
  const int64_t for_few = OfRun("few", GetParam(), 4);
  EXPECT_GT(for_few, 0);
  // One or two depend on which thread comes first. Each of two ranks has ten steps more.
  EXPECT_LT(OfRun("many", GetParam(), 14), for_few + 10);
}

INSTANTIATE_TEST_SUITE_P(Stages, RankAllocations, testing::Values(0, 1, 2, 3),
                         [](const auto& stage) { return fmt::format("{}", stage.param); });

}  // namespace
}  // namespace forebay
