#include "forebay/step/step_schedule.h"

#include <algorithm>
#include <cmath>
#include <set>
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

TEST(ChainSchedule, GradientsOfTheEndsThatAreMadeInPartsFindTheWeightsOfTheLoss) {
  const std::string forward =
      "read 0, update 0, write 0, forward 0, keep 0, release 0, "
      "read 1, update 1, write 1, forward 1, release 1, read 2, update 2, write 2, ";
  const std::string backward = "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, ";
  Chain chain = {.num_layers = 3, .ends_in_parts = true};
  EXPECT_EQ(Describe(ChainSchedule(chain).operations),
            forward + "loss and gradient 2, commit, hand 2, release 2, " + backward +
                "backward 0, hand 0");
  chain.loss_reads_first = true;
  EXPECT_EQ(Describe(ChainSchedule(chain).operations),
            forward + "read 0, loss and gradient 2, release 0, release 2, commit, hand 2, " +
                backward + "read 0, backward 0, hand 0, release 0");
  // A pass without gradients is as without parts.
  Chain whole = chain;
  whole.ends_in_parts = false;
  EXPECT_EQ(ForwardOperations(chain), ForwardOperations(whole));
}

TEST(ChainSchedule, AnUpdateComesWhereItsLayerSays) {
  const StepSchedule schedule = ChainSchedule(
      {.num_layers = 3,
       .update_times = {UpdateTime::kOnRead, UpdateTime::kAfterHand, UpdateTime::kAfterNextHand}});
  EXPECT_EQ(Describe(schedule.operations),
            "read 0, update 0, write 0, forward 0, keep 0, release 0, "
            "read 1, forward 1, release 1, read 2, loss and gradient 2, release 2, commit, hand 2, "
            "update 2, write 2, "
            "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, update 1, write 1, "
            "backward 0, hand 0");
}

TEST(ChainSchedule, LayersSaveJustBeforeTheirForwardAndComputeTheRestAgain) {
  const StepSchedule schedule = ChainSchedule({.num_layers = 4, .num_saving = 1});
  EXPECT_EQ(Describe(schedule.operations),
            "read 0, update 0, write 0, forward 0, keep 0, release 0, "
            "read 1, update 1, write 1, forward 1, keep 1, release 1, "
            "read 2, update 2, write 2, save 2, forward 2, release 2, "
            "read 3, update 3, write 3, loss and gradient 3, release 3, commit, hand 3, "
            "read 2, recompute 2, backward 2, drop 1, release 2, hand 2, "
            "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, "
            "backward 0, hand 0");
  const auto num_saves = [](int num_saving) {
    return std::ranges::count(ChainSchedule({.num_layers = 6, .num_saving = num_saving}).operations,
                              OperationKind::kSave, &Operation::kind);
  };
  EXPECT_EQ(num_saves(0), 0);
  EXPECT_EQ(num_saves(4), 4);
  EXPECT_DEATH(num_saves(5), "num_saving");
}

TEST(ChainSchedule, LayersOfASegmentGoForwardAgainBeforeTheirBackward) {
  const StepSchedule schedule = ChainSchedule({.num_layers = 7, .segment_layers = 2});
  std::vector<Operation> without_updates = schedule.operations;
  std::erase_if(without_updates, [](const Operation& op) {
    return op.kind == OperationKind::kUpdate || op.kind == OperationKind::kWrite;
  });
  EXPECT_EQ(Describe(without_updates),
            "read 0, forward 0, keep 0, release 0, read 1, forward 1, release 1, "
            "read 2, forward 2, keep 2, release 2, read 3, forward 3, release 3, "
            "read 4, forward 4, keep 4, release 4, read 5, forward 5, release 5, "
            "read 6, loss and gradient 6, release 6, commit, hand 6, "
            "read 5, recompute 5, backward 5, drop 4, release 5, hand 5, "
            "read 3, forward 3, keep 3, release 3, "
            "read 4, recompute 4, backward 4, drop 3, release 4, hand 4, "
            "read 3, recompute 3, backward 3, drop 2, release 3, hand 3, "
            "read 1, forward 1, keep 1, release 1, "
            "read 2, recompute 2, backward 2, drop 1, release 2, hand 2, "
            "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, "
            "backward 0, hand 0");
  // Each is updated once, in the first pass.
  EXPECT_EQ(std::ranges::count(schedule.operations, OperationKind::kUpdate, &Operation::kind), 7);
}

// Played through: every layer finds its input, and no more activations are there than are counted.
TEST(ChainSchedule, SegmentsKeepEveryInputThatIsNeededInTheBuffersThatAreCounted) {
  for (int num_layers = 3; num_layers < 20; ++num_layers) {
    int least_buffers = num_layers;
    for (int segment = 1; segment <= num_layers; ++segment) {
      const Chain chain = {.num_layers = num_layers, .segment_layers = segment};
      std::set<int> kept;
      int newest = -1;
      size_t most = 0;
      for (const auto& [kind, layer] : ChainSchedule(chain).operations) {
        if (kind == OperationKind::kForward) {
          EXPECT_TRUE(layer == 0 || newest == layer - 1 || kept.contains(layer - 1));
          newest = layer;
          most = std::max(most, kept.size() + 1);
        } else if (kind == OperationKind::kLossAndGradient) {
          EXPECT_EQ(newest, layer - 1);
        } else if (kind == OperationKind::kKeep) {
          EXPECT_EQ(newest, layer);
          kept.insert(layer);
        } else if (kind == OperationKind::kBackward && layer > 0) {
          EXPECT_TRUE(kept.contains(layer - 1));
        } else if (kind == OperationKind::kDrop) {
          EXPECT_EQ(kept.erase(layer), 1);
        }
      }
      EXPECT_TRUE(kept.empty());
      EXPECT_EQ(static_cast<int>(most), NumActivationBuffers(chain)) << num_layers << segment;
      least_buffers = std::min(least_buffers, NumActivationBuffers(chain));
    }
    EXPECT_LE(least_buffers, 2 * std::sqrt(num_layers) + 1);
  }
}

TEST(ChainSchedule, SpillsTheFirstActivationsAndFetchesEachIntoTheBufferThatGetsFree) {
  const StepSchedule schedule = ChainSchedule({.num_layers = 6, .num_spilled_activations = 2});
  std::vector<Operation> without_updates = schedule.operations;
  std::erase_if(without_updates, [](const Operation& op) {
    return op.kind == OperationKind::kUpdate || op.kind == OperationKind::kWrite;
  });
  EXPECT_EQ(Describe(without_updates),
            "read 0, forward 0, keep 0, spill 0, release 0, "
            "read 1, forward 1, keep 1, spill 1, release 1, "
            "read 2, forward 2, keep 2, release 2, read 3, forward 3, keep 3, release 3, "
            "read 4, forward 4, release 4, read 5, loss and gradient 5, release 5, fetch 1, "
            "commit, hand 5, "
            "read 4, recompute 4, backward 4, drop 3, fetch 0, release 4, hand 4, "
            "read 3, recompute 3, backward 3, drop 2, release 3, hand 3, "
            "read 2, recompute 2, backward 2, drop 1, release 2, hand 2, "
            "read 1, recompute 1, backward 1, drop 0, release 1, hand 1, "
            "backward 0, hand 0");
}

TEST(ChainSchedule, FetchesTheInputOfASegmentWhenNoneThatGoesForwardAgainNeedsItsBuffer) {
  const StepSchedule schedule =
      ChainSchedule({.num_layers = 9, .num_spilled_activations = 2, .segment_layers = 2});
  std::vector<Operation> transfers = schedule.operations;
  std::erase_if(transfers, [](const Operation& op) {
    return op.kind != OperationKind::kForward && op.kind != OperationKind::kBackward &&
           op.kind != OperationKind::kSpill && op.kind != OperationKind::kFetch;
  });
  EXPECT_EQ(Describe(transfers),
            "forward 0, spill 0, forward 1, forward 2, spill 2, forward 3, forward 4, forward 5, "
            "forward 6, forward 7, fetch 2, backward 7, forward 5, backward 6, fetch 0, "
            "backward 5, forward 3, backward 4, backward 3, forward 1, backward 2, backward 1, "
            "backward 0");
}

// Plays a step: the activation at place p of those that are kept is in buffer p modulo their
// number.
class BufferPlay {
 public:
  explicit BufferPlay(const Chain& chain)
      : buffers_(static_cast<size_t>(NumActivationBuffers(chain)), kNone) {}

  void Play(const Operation& operation) {
    const int layer = operation.layer;
    switch (operation.kind) {
      case OperationKind::kForward:
        if (layer > 0) ExpectInput(layer - 1);
        // It is free, or its activation is elsewhere, or the layer computes in place.
        EXPECT_TRUE(Next() == kNone || away_.contains(Next()) || Next() == layer - 1) << layer;
        Next() = layer;
        break;
      case OperationKind::kKeep:
        EXPECT_EQ(Next(), layer);
        kept_.push_back(layer);
        break;
      case OperationKind::kSpill:
        EXPECT_EQ(layer, kept_.back());
        EXPECT_TRUE(away_.insert(layer).second);
        ++num_spills;
        break;
      case OperationKind::kFetch: {
        EXPECT_EQ(away_.erase(layer), 1) << layer;
        const auto place = static_cast<size_t>(std::ranges::find(kept_, layer) - kept_.begin());
        ASSERT_LT(place, kept_.size());
        EXPECT_EQ(BufferOf(place), kNone) << layer;
        BufferOf(place) = layer;
        ++num_fetches;
        break;
      }
      case OperationKind::kLossAndGradient:
        EXPECT_EQ(Next(), layer - 1);
        Next() = kNone;
        break;
      case OperationKind::kBackward:
        if (layer > 0) ExpectInput(layer - 1);
        break;
      case OperationKind::kDrop:
        EXPECT_EQ(kept_.back(), layer);
        kept_.pop_back();
        Next() = kNone;
        break;
      default:
        break;
    }
  }
  void ExpectEnd() const { EXPECT_TRUE(kept_.empty() && away_.empty()); }

  int num_spills = 0;
  int num_fetches = 0;

 private:
  static constexpr int kNone = -1;
  int& BufferOf(size_t place) { return buffers_[place % buffers_.size()]; }
  int& Next() { return BufferOf(kept_.size()); }
  void ExpectInput(int layer) {
    const bool is_kept = !kept_.empty() && kept_.back() == layer;
    EXPECT_EQ(is_kept ? BufferOf(kept_.size() - 1) : Next(), layer);
  }

  std::vector<int> buffers_;  // the layers whose activations are there
  std::vector<int> kept_;
  std::set<int> away_;
};

TEST(ChainSchedule, HasEveryActivationInItsBufferWhenItIsNeeded) {
  int num_in_segments = 0;
  for (int num_layers = 3; num_layers < 20; ++num_layers) {
    for (int segment = 1; segment <= num_layers - 2; ++segment) {
      Chain chain = {.num_layers = num_layers, .segment_layers = segment};
      const int most_spilled = MostSpilledActivations(chain);
      for (int spilled = 0; spilled <= most_spilled; ++spilled) {
        chain.num_spilled_activations = spilled;
        SCOPED_TRACE(testing::Message() << num_layers << " " << segment << " " << spilled);
        BufferPlay play(chain);
        for (const Operation& operation : ChainSchedule(chain).operations) play.Play(operation);
        play.ExpectEnd();
        EXPECT_EQ(play.num_spills, spilled);
        EXPECT_EQ(play.num_fetches, spilled);
        num_in_segments += segment > 1 && spilled > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_in_segments, 100);
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
