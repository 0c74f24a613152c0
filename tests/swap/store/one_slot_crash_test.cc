// Crashes at every moment of a store with one slot, which promises less: what opens is a whole
// step, and what a crash has left in pieces does not open. Between a commit and the next write
// nothing is lost.
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kOneSlotSteps = 3;

class OneSlotCrashTest : public CrashFixture {
 protected:
  void SetUp() override { Record(kOneSlotSteps); }

  // What happened to the states that were looked at.
  struct Tally {
    int num_opened = 0;
    int num_refused = 0;
    int num_repaired = 0;
  };

  // What opens is a step, what does not is repaired to one or not at all; nothing is damaged.
  std::string Check(const DiskCase& crash, std::span<const DiskEvent> events, Tally& tally) {
    const Seen& seen = See(ImageOf(start_, events, crash), /*repair=*/true);
    if (!seen.problem.empty()) return seen.problem;
    (seen.found.opened ? tally.num_opened : tally.num_refused) += 1;
    tally.num_repaired += seen.repaired ? 1 : 0;
    // Of the first step nothing is promised before it is committed.
    if (!seen.found.opened || (seen.found.step < 0 && PromisedStep(crash.num_events) == 0)) {
      return "";
    }
    return seen.found.whole ? "" : "it opens, but " + seen.found.error;
  }
  Judge JudgeOf(const std::vector<DiskEvent>& events, Tally& tally) {
    return [&](const DiskCase& crash) { return Check(crash, events, tally); };
  }

  // The recorded events without those that announce an overwriting and `is_left_out`.
  std::vector<DiskEvent> WithoutOfAnnouncements(bool (*is_left_out)(const DiskEvent&)) {
    std::vector<DiskEvent> events;
    bool announces = false;  // from a commit to the first write of data behind it
    for (size_t i = 0; i < events_.size(); ++i) {
      for (const size_t commit : events_at_commit_) announces |= commit == i;
      announces &= IsCommitFile(events_[i].path) || events_[i].is_flush;
      if (!announces || !is_left_out(events_[i])) events.push_back(events_[i]);
    }
    EXPECT_LT(events.size(), events_.size());
    return events;
  }
};

TEST_P(OneSlotCrashTest, NeverOpensWhatIsMixedAndRepairsWhatIsWhole) {
  Tally tally;
  const Judge judge = JudgeOf(events_, tally);
  EXPECT_EQ(Explain(FirstOnHonestDisk(events_, judge), events_, judge), "");
  EXPECT_GT(tally.num_opened, 0);
  EXPECT_GT(tally.num_refused, 0);
  EXPECT_GT(tally.num_repaired, 0);
}

TEST_P(OneSlotCrashTest, ACommitIsKeptUntilTheNextWrite) {
  for (int64_t step = 1; step <= kOneSlotSteps; ++step) {
    for (const DiskCase& crash :
         CrashesAfter(events_, events_at_commit_[step - 1], CounterRng(CrashSeed()), {})) {
      const Seen& seen = See(ImageOf(start_, events_, crash), /*repair=*/false);
      EXPECT_EQ(seen.found.step, step) << seen.found.error << Describe(events_, crash);
      EXPECT_TRUE(seen.found.whole) << seen.found.error << Describe(events_, crash);
    }
  }
}

// The suite must be able to fail: where the overwriting is not announced durably, a crash leaves
// pieces that open.
TEST_P(OneSlotCrashTest, WouldBeCaughtIfTheOverwritingWereNotAnnouncedFirst) {
  const std::vector<DiskEvent> events =
      WithoutOfAnnouncements([](const DiskEvent& event) { return IsCommitFile(event.path); });
  Tally tally;
  EXPECT_TRUE(FirstOnHonestDisk(events, JudgeOf(events, tally)).has_value());
}

// Nor where the announcement may still be on its way when the first tile is written over.
TEST_P(OneSlotCrashTest, WouldBeCaughtIfTheAnnouncementWereNotFlushed) {
  const std::vector<DiskEvent> events =
      WithoutOfAnnouncements([](const DiskEvent& event) { return event.is_flush; });
  Tally tally;
  EXPECT_TRUE(FirstOnHonestDisk(events, JudgeOf(events, tally)).has_value());
}

TEST_P(OneSlotCrashTest, WouldBeCaughtIfTheDataWereNotFlushedBeforeTheRecord) {
  std::vector<DiskEvent> events = events_;
  std::erase_if(events,
                [](const DiskEvent& event) { return event.is_flush && !IsCommitFile(event.path); });
  Tally tally;
  EXPECT_TRUE(FirstOnHonestDisk(events, JudgeOf(events, tally)).has_value());
}

TEST_P(OneSlotCrashTest, SaysWhyWhatACrashHasLeftCannotBeUsed) {
  // Before the flushes and the records of the commit of step 2.
  const size_t num_events = events_at_commit_[1] - 7 * static_cast<size_t>(GetParam().num_folders);
  crashed().Put(ImageOf(start_, events_, {num_events, {}}));
  RecordedStore opened(crashed());
  EXPECT_EQ(ExitCodeOf(opened.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(opened.status()),
              testing::AllOf(HasSubstr("keeps one copy (--durability=none)"),
                             HasSubstr("after step 1"), HasSubstr("inspect RUN --repair")));
}

INSTANTIATE_TEST_SUITE_P(Folders, OneSlotCrashTest,
                         testing::Values(RunShape{1, 1, 1}, RunShape{1, 1, 2}, RunShape{2, 1, 1}),
                         NameOfShape);

}  // namespace
}  // namespace forebay
