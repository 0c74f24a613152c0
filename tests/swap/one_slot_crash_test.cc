// Crashes at every moment of a store with one slot, which promises less: what opens is a whole
// step, and what a crash has left in pieces does not open. Between a commit and the next write
// nothing is lost.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/crash_images.h"
#include "forebay/tests/swap/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kNumSteps = 3;

// The parameter is the number of folders.
class OneSlotCrashTest : public testing::TestWithParam<int> {
 protected:
  // Commits step 1, then records steps 2 to kNumSteps, the last of them written twice.
  void SetUp() override {
    const std::string directory = folder_.Path("recorded");
    const std::vector<std::string> folders = FoldersIn(directory, GetParam());
    MakeStoreWithStep1(folders, /*num_slots=*/1);
    start_ = LoadImage(directory);
    RecordedStore recorded(folders);
    ASSERT_TRUE(recorded.store.ok()) << recorded.store.status();
    commits_.push_back({0, 1});
    for (int64_t step = 2; step <= kNumSteps; ++step) {
      if (step == kNumSteps) {
        ASSERT_EQ(WriteTiles(**recorded.store, 100), absl::OkStatus());
      }
      ASSERT_EQ(WriteStep(**recorded.store, step), absl::OkStatus());
      commits_.push_back({recorded.disk.events().size(), step});
    }
    events_ = recorded.disk.events();
  }

  struct CommittedAt {
    size_t num_events = 0;  // when Commit returned
    int64_t step = 0;
  };
  // What happened to the states that were looked at.
  struct Tally {
    int num_opened = 0;
    int num_refused = 0;
    int num_repaired = 0;
  };

  // "" when the store in `folders` is one whole step, or says that it is none.
  std::string Check(const std::vector<std::string>& folders, bool& opens) {
    RecordedStore opened(folders);
    opens = opened.store.ok();
    if (!opens) {
      return ExitCodeOf(opened.store.status()) == ExitCode::kCorrupt
                 ? ""
                 : MessageOf(opened.store.status());
    }
    TensorStore& store = **opened.store;
    if (!store.has_commit()) return "no step is committed";
    return HoldsStep(store, store.committed().step)
               ? ""
               : fmt::format("step {} is mixed with another", store.committed().step);
  }

  // The same, after a repair of what does not open: what is repaired opens.
  std::string CheckAndRepair(const Image& image, Tally& tally) {
    const std::string directory = crashed_folder_.Path("crashed");
    SaveImage(image, directory);
    const std::vector<std::string> folders = FoldersIn(directory, GetParam());
    bool opens = false;
    std::string problem = Check(folders, opens);
    (opens ? tally.num_opened : tally.num_refused) += 1;
    if (!problem.empty() || opens) return problem;
    FaultyDisk disk(Recording());
    if (!Repair(folders, disk).ok()) return "";
    ++tally.num_repaired;
    problem = Check(folders, opens);
    return problem.empty() && !opens ? "what was repaired does not open" : problem;
  }

  // The first crash state of `events` that is wrong; "" when none is.
  std::string FirstViolation(std::span<const DiskEvent> events, Tally& tally) {
    for (size_t num_events = 0; num_events <= events.size(); ++num_events) {
      const std::span<const DiskEvent> seen = events.first(num_events);
      std::vector<Image> images = SubsetImages(start_, seen);
      for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne,
                              Loss::kTornLast, Loss::kRandom, Loss::kRandom}) {
        images.push_back(CrashImage(start_, seen, loss, num_events + 1000 * images.size()));
      }
      for (const Image& image : images) {
        const std::string problem = CheckAndRepair(image, tally);
        if (!problem.empty()) return fmt::format("{} (after {} events)", problem, num_events);
      }
    }
    return "";
  }

  TemporaryFolder folder_;
  TemporaryFolder crashed_folder_{FolderInRam()};
  Image start_;
  std::vector<DiskEvent> events_;
  std::vector<CommittedAt> commits_;
};

TEST_P(OneSlotCrashTest, NeverOpensWhatIsMixedAndRepairsWhatIsWhole) {
  Tally tally;
  EXPECT_EQ(FirstViolation(events_, tally), "");
  EXPECT_GT(tally.num_opened, 0);
  EXPECT_GT(tally.num_refused, 0);
  EXPECT_GT(tally.num_repaired, 0);
}

TEST_P(OneSlotCrashTest, ACommitIsKeptUntilTheNextWrite) {
  for (const CommittedAt& commit : commits_) {
    for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kTornLast}) {
      const std::string directory = crashed_folder_.Path("crashed");
      SaveImage(CrashImage(start_, std::span(events_).first(commit.num_events), loss, 1),
                directory);
      RecordedStore opened(FoldersIn(directory, GetParam()));
      ASSERT_TRUE(opened.store.ok()) << opened.store.status();
      EXPECT_EQ((*opened.store)->committed().step, commit.step);
      EXPECT_TRUE(HoldsStep(**opened.store, commit.step));
    }
  }
}

// The suite must be able to fail: where the overwriting is not announced durably, a crash leaves
// pieces that open.
TEST_P(OneSlotCrashTest, WouldBeCaughtIfTheOverwritingWereNotAnnouncedFirst) {
  std::vector<DiskEvent> events;
  bool announces = true;  // up to the first write of data behind a commit
  for (size_t i = 0; i < events_.size(); ++i) {
    const DiskEvent& event = events_[i];
    for (const CommittedAt& commit : commits_) announces |= commit.num_events == i;
    announces &= IsCommitFile(event.path) || event.is_flush;
    if (!announces || !IsCommitFile(event.path)) events.push_back(event);
  }
  ASSERT_LT(events.size(), events_.size());
  Tally tally;
  EXPECT_NE(FirstViolation(events, tally), "");
}

// Nor where the announcement may still be on its way when the first tile is written over.
TEST_P(OneSlotCrashTest, WouldBeCaughtIfTheAnnouncementWereNotFlushed) {
  std::vector<DiskEvent> events;
  bool announces = true;  // as above
  for (size_t i = 0; i < events_.size(); ++i) {
    const DiskEvent& event = events_[i];
    for (const CommittedAt& commit : commits_) announces |= commit.num_events == i;
    announces &= IsCommitFile(event.path) || event.is_flush;
    if (!announces || !event.is_flush) events.push_back(event);
  }
  ASSERT_LT(events.size(), events_.size());
  Tally tally;
  EXPECT_NE(FirstViolation(events, tally), "");
}

TEST_P(OneSlotCrashTest, WouldBeCaughtIfTheDataWereNotFlushedBeforeTheRecord) {
  std::vector<DiskEvent> events = events_;
  std::erase_if(events,
                [](const DiskEvent& event) { return event.is_flush && !IsCommitFile(event.path); });
  Tally tally;
  EXPECT_NE(FirstViolation(events, tally), "");
}

TEST_P(OneSlotCrashTest, SaysWhyWhatACrashHasLeftCannotBeUsed) {
  const std::string directory = crashed_folder_.Path("crashed");
  // Before the flushes and the records of the commit of step 2.
  const size_t num_events = commits_[1].num_events - 7 * static_cast<size_t>(GetParam());
  SaveImage(CrashImage(start_, std::span(events_).first(num_events), Loss::kNone, 1), directory);
  RecordedStore opened(FoldersIn(directory, GetParam()));
  EXPECT_EQ(ExitCodeOf(opened.store.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(opened.store.status()),
              testing::AllOf(HasSubstr("keeps one copy (--durability=none)"),
                             HasSubstr("after step 1"), HasSubstr("inspect RUN --repair")));
}

INSTANTIATE_TEST_SUITE_P(Folders, OneSlotCrashTest, testing::Values(1, 2),
                         [](const auto& c) { return std::to_string(c.param); });

}  // namespace
}  // namespace forebay
