// Crashes while updates are delayed (offload/layer_session.h): whatever step comes next, its
// gradients are whole, or the weights of the commit before are, from which it makes them.
#include <cstdlib>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "forebay/tests/swap/store/kept_gradients.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int kHalves = 2;

class DelayedCrashTest : public CrashFixture {
 protected:
  // Commits steps 1 and 2. Then three steps: while one is written, the gradients of the next come,
  // which are kept when it is committed.
  void SetUp() override {
    const TemporaryFolder folder{FolderInRam()};
    const std::vector<std::string> folders = FoldersIn(folder.path(), GetParam().num_folders);
    MakeStore(folders, kMostSlots);
    {
      RecordedStore store(folders);
      ASSERT_TRUE(store.ok()) << store.status();
      for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
      KeptGradients sized(&*store, kHalves);
    }
    start_ = LoadImage(folder.path());
    RecordedStore store(folders);
    ASSERT_TRUE(store.ok()) << store.status();
    KeptGradients gradients(&*store, kHalves);
    ASSERT_EQ(gradients.Publish(3), absl::OkStatus());
    for (const int64_t step : {3, 4, 5}) {
      events_at_intent_.push_back(store.events().size());
      ASSERT_EQ(WriteTiles(*store, step), absl::OkStatus());
      ASSERT_EQ(gradients.Write(step + 1), absl::OkStatus());
      ASSERT_EQ(store->Commit({step, Json::object()}), absl::OkStatus());
      ASSERT_EQ(gradients.PublishIntent(step + 1), absl::OkStatus());
    }
    events_ = store.events();
  }

  // "" when the run in `store` can go on. `has_gradients`: with what it finds kept.
  std::string WhyItCannotGoOn(TensorStore& store, bool& has_gradients) {
    const int64_t committed = store.committed().step;
    if (!HoldsStep(store, committed)) return fmt::format("step {} is not whole", committed);
    bool are_whole = false;
    const auto step = KeptGradients(&store, kHalves).Find(are_whole);
    if (!step.ok()) return MessageOf(step.status());
    if (testing::Test::HasFailure()) return "gradients of another step";
    has_gradients = *step == committed + 1 && are_whole;
    if (has_gradients) return "";
    if (const absl::Status found = store.FindPrevious(); !found.ok()) return MessageOf(found);
    Scratch read(store.tiles().max_weight_bytes());
    Scratch expected(store.tiles().max_weight_bytes());
    for (int i = 0; i < store.tiles().num_tiles(); ++i) {
      const int64_t bytes = store.tiles().WeightBytes(store.tiles().tiles()[i]);
      IoOp op;
      store.StartReadWeights(i, read.first(bytes), IoClass::kDemand, op, Generation::kPrevious);
      absl::Status status = store.engine().Wait(op);
      status.Update(store.VerifyWeights(i, read.first(bytes), Generation::kPrevious));
      if (!status.ok()) return MessageOf(status);
      FillPattern(expected.first(bytes), committed - 1, i, /*state=*/false);
      if (!std::ranges::equal(read.first(bytes), expected.first(bytes))) {
        return fmt::format("tile {} is not that of step {}", i, committed - 1);
      }
    }
    return "";
  }

  std::string Check(const Image& image) {
    crashed().Put(image);
    RecordedStore store(crashed());
    if (!store.ok()) return MessageOf(store.status());
    bool has_gradients = false;
    std::string problem = WhyItCannotGoOn(*store, has_gradients);
    ++(has_gradients ? num_with_gradients_ : num_with_weights_);
    return problem;
  }

  // The process was killed behind so many events, all of which its disk had in a cache; the next
  // one goes on from there, until its first commit.
  std::vector<DiskEvent> GoneOnAfter(size_t num_events) {
    std::vector<DiskEvent> events(events_.begin(), events_.begin() + num_events);
    crashed().Put(ImageOf(start_, events_, {num_events, {}}));
    RecordedStore store(crashed());
    EXPECT_TRUE(store.ok()) << store.status();
    bool has_gradients = false;
    EXPECT_EQ(WhyItCannotGoOn(*store, has_gradients), "");
    const int64_t next = store->committed().step + 1;
    if (!has_gradients) {
      EXPECT_EQ(KeptGradients(&*store, kHalves).Publish(next), absl::OkStatus());
    }
    EXPECT_EQ(WriteStep(*store, next), absl::OkStatus());
    for (DiskEvent& event : store.events()) events.push_back(std::move(event));
    return events;
  }

  std::vector<size_t> events_at_intent_;
  int num_with_gradients_ = 0;
  int num_with_weights_ = 0;
};

TEST_P(DelayedCrashTest, LeaveGradientsOrTheWeightsThatTheyAreMadeWith) {
  const Judge judge = [this](const DiskCase& crash) {
    return Check(ImageOf(start_, events_, crash));
  };
  EXPECT_EQ(Explain(FirstOnHonestDisk(events_, judge), events_, judge), "");
  EXPECT_GT(num_with_gradients_, 100);
  EXPECT_GT(num_with_weights_, 100);
}

// What the next process builds upon may have been in no more than a cache when the one before was
// killed.
TEST_P(DelayedCrashTest, APowerCutAfterAKillTakesNothingThatWasBuiltUpon) {
  const size_t first = events_at_intent_[1] - 6;
  const size_t last = events_at_intent_[1] + 2;
  // Other moments in every run of the tests, and in scripts/test --full each.
  const size_t step = kFewerStates ? 4 : std::getenv("FOREBAY_FULL") == nullptr ? 3 : 1;
  for (size_t killed_at = first + CrashSeed() % step; killed_at <= last; killed_at += step) {
    SCOPED_TRACE(killed_at);
    const std::vector<DiskEvent> events = GoneOnAfter(killed_at);
    ASSERT_FALSE(HasFailure());
    const Judge judge = [&](const DiskCase& crash) {
      return Check(ImageOf(start_, events, crash));
    };
    std::optional<Violation> violation;
    for (size_t n = killed_at; n <= events.size() && !violation.has_value(); ++n) {
      violation = FirstOf(CrashesAfter(events, n, CounterRng(CrashSeed(), n), {}), judge);
    }
    ASSERT_EQ(Explain(violation, events, judge), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, DelayedCrashTest, testing::Values(RunShape{1}, RunShape{2}),
                         NameOfShape);

}  // namespace
}  // namespace forebay
