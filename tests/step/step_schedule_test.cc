#include "forebay/step/step_schedule.h"

#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

TEST(ChainSchedule, GoesForwardOnceAndBackwardThroughTheLayersBetween) {
  const StepSchedule schedule = ChainSchedule({.num_layers = 4});
  EXPECT_EQ(Describe(schedule.operations),
            "read 0, update 0, write 0, forward 0, keep 0, release 0, "
            "read 1, update 1, write 1, forward 1, keep 1, release 1, "
            "read 2, update 2, write 2, forward 2, release 2, "
            "read 3, update 3, write 3, loss and gradient 3, release 3, commit, hand 3, "
            "read 2, recompute 2, backward 2, drop 1, release 2, hand 2, "
            "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, "
            "backward 0, hand 0");
  EXPECT_THAT(schedule.Reads(), ElementsAre(0, 1, 2, 3, 2, 1));
  EXPECT_THAT(schedule.Handed(), ElementsAre(3, 2, 1, 0));
}

TEST(ChainSchedule, ATiedFirstLayerIsHeldBesideTheLastForTheLoss) {
  const StepSchedule schedule = ChainSchedule({.num_layers = 3, .loss_reads_first = true});
  EXPECT_EQ(Describe(schedule.operations),
            "read 0, update 0, write 0, forward 0, keep 0, release 0, "
            "read 1, update 1, write 1, forward 1, release 1, "
            "read 2, update 2, write 2, read 0, loss and gradient 2, release 0, release 2, "
            "commit, hand 2, read 1, recompute 1, backward 1, drop 0, release 1, hand 1, "
            "backward 0, hand 0");
  EXPECT_THAT(ReadsOf(schedule.FromLossOn()), ElementsAre(2, 0, 1));
}

TEST(ChainSchedule, AnUpdateComesWhereItsLayerSays) {
  const StepSchedule schedule = ChainSchedule(
      {.num_layers = 3,
       .update_times = {UpdateTime::kOnRead, UpdateTime::kAfterHand, UpdateTime::kBesideStep}});
  EXPECT_EQ(Describe(schedule.operations),
            "update 2, write 2, read 0, update 0, write 0, forward 0, keep 0, release 0, "
            "read 1, forward 1, release 1, read 2, loss and gradient 2, release 2, commit, hand 2, "
            "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, update 1, write 1, "
            "backward 0, hand 0");
}

TEST(ForwardOperations, KeepNothingAndUpdateNothing) {
  const Chain chain = {.num_layers = 3, .loss_reads_first = true};
  EXPECT_EQ(Describe(ForwardOperations(chain)),
            "read 0, forward 0, release 0, read 1, forward 1, release 1, "
            "read 2, read 0, loss 2, release 0, release 2");
  EXPECT_EQ(Describe(ForwardOperationsWithoutLoss(chain)),
            "read 0, forward 0, release 0, read 1, forward 1, release 1");
}

}  // namespace
}  // namespace forebay
