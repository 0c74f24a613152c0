// Crashes while gradients are kept and their steps committed: an intent that is found is that of
// the step after the committed one, and gradients that fit it are its own. Nothing of it is written
// in an order; only that they are found after a flush needs one.
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "forebay/tests/swap/store/kept_gradients.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

class IntentCrashTest : public CrashFixture {
 protected:
  // Commits step 1; then two steps, the gradients of each kept before it is written.
  void SetUp() override {
    const TemporaryFolder folder{FolderInRam()};
    const std::vector<std::string> folders = FoldersIn(folder.path(), GetParam().num_folders);
    MakeStore(folders, kMostSlots);
    {
      RecordedStore store(folders);
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
      KeptGradients sized(&*store);  // the files have their sizes from here on
    }
    start_ = LoadImage(folder.path());
    RecordedStore store(folders);
    ASSERT_TRUE(store.ok()) << store.status();
    KeptGradients gradients(&*store);
    for (const int64_t step : {2, 3}) {
      ASSERT_EQ(gradients.Publish(step), absl::OkStatus());
      events_at_intent_.push_back(store.events().size());
      ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
    }
    events_ = store.events();
  }

  // The step whose intent had been flushed after so many events, and whose gradients had not been
  // touched since; 0: none.
  int64_t DurableStep(size_t num_events) const {
    if (num_events >= events_at_intent_[1]) return 3;
    if (num_events < events_at_intent_[0]) return 0;
    for (size_t i = events_at_intent_[0]; i < num_events; ++i) {
      if (events_[i].path.ends_with("/gradients.fbs")) return 0;
    }
    return 2;
  }

  std::string Check(const DiskCase& crash) {
    crashed().Put(ImageOf(start_, events_, crash));
    RecordedStore store(crashed());
    if (!store.ok()) return std::string(store.status().message());
    bool are_whole = false;
    const auto step = KeptGradients(&*store).Find(are_whole);
    if (!step.ok()) return std::string(step.status().message());
    const int64_t committed = store->committed().step;
    if (*step >= 0 && *step != committed + 1) {
      return fmt::format("an intent of step {} after step {}", *step, committed);
    }
    if (testing::Test::HasFailure()) return "gradients of another step";
    num_whole_ += *step >= 0 && are_whole ? 1 : 0;
    if (DurableStep(crash.num_events) == committed + 1 && !(*step >= 0 && are_whole)) {
      return fmt::format("the gradients of step {} are gone", committed + 1);
    }
    return "";
  }

  std::vector<size_t> events_at_intent_;
  int num_whole_ = 0;
};

TEST_P(IntentCrashTest, NeverPassOffOtherGradientsAndKeepThoseThatWereFlushed) {
  const Judge judge = [this](const DiskCase& crash) { return Check(crash); };
  EXPECT_EQ(Explain(FirstOnHonestDisk(events_, judge), events_, judge), "");
  EXPECT_GT(num_whole_, 50);
}

INSTANTIATE_TEST_SUITE_P(Folders, IntentCrashTest, testing::Values(RunShape{1}, RunShape{2}),
                         NameOfShape);

}  // namespace
}  // namespace forebay
