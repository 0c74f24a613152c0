// Crashes at every moment of a small run. A recorded run gives the writes and flushes that reached
// the disk; the legal states of the disk at every point are rebuilt (writes without a later flush
// may be missing or torn: every subset of few writes, samples of more), and what opens there must
// be one whole step, and no older than the last one that was promised. A process that is killed
// leaves its unflushed writes to the next one, which reads them; a power cut then loses those of
// both.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/crash_images.h"
#include "forebay/tests/swap/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kNumSteps = 4;

struct Shape {
  int num_folders = 1;
  int writes_per_commit = 1;  // of each tile: in place, but for the first
};

class CrashTest : public testing::TestWithParam<Shape> {
 protected:
  // Commits step 1, then records steps 2 to kNumSteps.
  void SetUp() override {
    const std::string directory = folder_.Path("recorded");
    const std::vector<std::string> folders = FoldersIn(directory, GetParam().num_folders);
    MakeStoreWithStep1(folders, kMostSlots);
    start_ = LoadImage(directory);
    RecordedStore recorded(folders);
    ASSERT_TRUE(recorded.store.ok()) << recorded.store.status();
    for (int64_t step = 2; step <= kNumSteps; ++step) {
      for (int write = 1; write < GetParam().writes_per_commit; ++write) {
        ASSERT_EQ(WriteTiles(**recorded.store, 100 * step + write), absl::OkStatus());
      }
      ASSERT_EQ(WriteStep(**recorded.store, step), absl::OkStatus());
      events_at_commit_.push_back(recorded.disk.events().size());
    }
    events_ = recorded.disk.events();
  }

  // The newest step whose Commit had returned within the first `num_events`.
  int64_t PromisedStep(size_t num_events) const {
    int64_t step = 1;
    for (const size_t events : events_at_commit_) step += events <= num_events ? 1 : 0;
    return step;
  }

  // Folders of a store that hold `image`, the same ones at each call.
  std::vector<std::string> FoldersWith(const Image& image) {
    const std::string directory = crashed_folder_.Path("crashed");
    SaveImage(image, directory);
    return FoldersIn(directory, GetParam().num_folders);
  }

  // "" when `image` opens as one whole step, no older than `promised`; else what is wrong. The step
  // goes to `recovered`, what opening did to the disk to `repair`.
  std::string Check(const Image& image, int64_t promised, int64_t* recovered = nullptr,
                    std::vector<DiskEvent>* repair = nullptr) {
    RecordedStore opened(FoldersWith(image));
    if (!opened.store.ok()) return MessageOf(opened.store.status());
    TensorStore& store = **opened.store;
    if (repair != nullptr) *repair = opened.disk.events();
    if (!store.has_commit()) return "no step is committed";
    const int64_t step = store.committed().step;
    if (recovered != nullptr) *recovered = step;
    if (step < promised || step > promised + 1) {
      return "promised " + std::to_string(promised) + ", found " + std::to_string(step);
    }
    if (!HoldsStep(store, step)) return "step " + std::to_string(step) + " is mixed with another";
    return "";
  }

  // A process that goes on where another one was killed: what it finds, and its own events up to
  // the commit of one more step.
  struct Resumed {
    int64_t step = 0;
    size_t num_events_of_open = 0;
    std::vector<DiskEvent> events;
  };
  void ResumeAfterKill(std::span<const DiskEvent> left, Resumed& next) {
    RecordedStore resumed(FoldersWith(CrashImage(start_, left, Loss::kNone, 0)));
    ASSERT_TRUE(resumed.store.ok()) << resumed.store.status();
    next.num_events_of_open = resumed.disk.events().size();
    next.step = (*resumed.store)->committed().step;
    ASSERT_EQ(WriteStep(**resumed.store, next.step + 1), absl::OkStatus());
    next.events = resumed.disk.events();
  }

  // Check, for the states of a loop: many losses leave the same disk, which is looked at once.
  std::string CheckOnce(const Image& image, int64_t promised, int64_t* recovered = nullptr) {
    const auto [found, is_new] = checked_.try_emplace({DigestOf(image), promised});
    auto& [problem, step] = found->second;
    if (is_new) problem = Check(image, promised, &step);
    if (recovered != nullptr) *recovered = step;
    return problem;
  }

  // The first crash state, over all points of `events`, that is wrong; "" when none is.
  std::string FirstViolation(const std::vector<DiskEvent>& events,
                             const std::vector<size_t>& events_at_commit) {
    events_at_commit_ = events_at_commit;
    for (size_t num_events = 0; num_events <= events.size(); ++num_events) {
      const std::span<const DiskEvent> seen = std::span(events).first(num_events);
      for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne,
                              Loss::kTornLast, Loss::kRandom}) {
        const std::string problem =
            CheckOnce(CrashImage(start_, seen, loss, num_events), PromisedStep(num_events));
        if (problem.empty()) continue;
        return problem + " (after " + std::to_string(num_events) + " events, loss " +
               std::to_string(static_cast<int>(loss)) + ")";
      }
      for (const Image& image : SubsetImages(start_, seen)) {
        const std::string problem = CheckOnce(image, PromisedStep(num_events));
        if (!problem.empty()) {
          return problem + " (after " + std::to_string(num_events) + " events, some writes lost)";
        }
      }
    }
    return "";
  }

  // The first state that is wrong after a kill around one commit, from its first record on, and a
  // power cut at any moment of the process that goes on; "" when none is. `flushes_first`: or as if
  // it had not flushed what it is about to read.
  std::string FirstViolationAfterKills(bool flushes_first) {
    uint64_t seed = 0;
    size_t begin = events_at_commit_[0];
    while (events_[begin].is_flush || !IsCommitFile(events_[begin].path)) ++begin;
    for (size_t killed = begin; killed <= events_at_commit_[1]; ++killed) {
      const std::span<const DiskEvent> left = std::span(events_).first(killed);
      Resumed next;
      ResumeAfterKill(left, next);
      if (testing::Test::HasFailure()) return "the next process did not go on";
      std::vector<DiskEvent> events(left.begin(), left.end());
      size_t done = 0;
      while (!flushes_first && next.events[done].is_flush) ++done;
      for (;; ++done) {
        const int64_t promised = done >= next.num_events_of_open ? next.step : PromisedStep(killed);
        for (const Loss loss : {Loss::kAll, Loss::kOne, Loss::kAllButOne, Loss::kTornLast,
                                Loss::kRandom, Loss::kRandom, Loss::kRandom, Loss::kRandom}) {
          const std::string problem = CheckOnce(CrashImage(start_, events, loss, ++seed), promised);
          if (problem.empty()) continue;
          return problem + " (killed after " + std::to_string(killed) + " events, cut after " +
                 std::to_string(done) + " of the next, loss " +
                 std::to_string(static_cast<int>(loss)) + ")";
        }
        if (done == next.events.size()) break;
        events.push_back(next.events[done]);
      }
    }
    return "";
  }

  std::string FirstViolationOfRepair(const Image& damaged, std::span<const DiskEvent> events,
                                     int64_t step);

  TemporaryFolder folder_;
  TemporaryFolder crashed_folder_{FolderInRam()};
  Image start_;
  std::vector<DiskEvent> events_;
  std::vector<size_t> events_at_commit_;
  // By the state's digest and what was promised: what is wrong, and the step that was found.
  std::map<std::pair<std::string, int64_t>, std::pair<std::string, int64_t>> checked_;
};

TEST_P(CrashTest, AtEveryMomentLeavesOneWholeStep) {
  EXPECT_EQ(FirstViolation(events_, events_at_commit_), "");
}

// The suite must be able to fail: without the flush of the data before the record, some crash mixes
// steps.
TEST_P(CrashTest, WouldBeCaughtIfTheDataWereNotFlushedBeforeTheRecord) {
  std::vector<DiskEvent> events;
  std::vector<size_t> commits;
  for (size_t i = 0; i < events_.size(); ++i) {
    const bool data_flush = events_[i].is_flush && !IsCommitFile(events_[i].path);
    if (!data_flush) events.push_back(events_[i]);
    if (std::ranges::count(events_at_commit_, i + 1) > 0) commits.push_back(events.size());
  }
  EXPECT_NE(FirstViolation(events, commits), "");
}

// Nor without that between the two copies: both may be torn then, or one folder have the record in
// its second copy before another has it at all.
TEST_P(CrashTest, WouldBeCaughtIfTheFirstCopiesWereNotFlushedBeforeTheSecond) {
  std::vector<DiskEvent> events;
  std::vector<size_t> commits;
  std::map<std::string, int> num_flushes;  // by commit file
  bool is_open = false;                    // what opening flushes stays
  for (size_t i = 0; i < events_.size(); ++i) {
    is_open |= !events_[i].is_flush;
    const bool commit_flush = is_open && events_[i].is_flush && IsCommitFile(events_[i].path);
    if (!commit_flush || num_flushes[events_[i].path]++ % 2 == 1) events.push_back(events_[i]);
    if (std::ranges::count(events_at_commit_, i + 1) > 0) commits.push_back(events.size());
  }
  EXPECT_NE(FirstViolation(events, commits), "");
}

TEST_P(CrashTest, ATornRecordInEitherCopyLeavesTheOther) {
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || !IsCommitFile(events_[i].path)) continue;
    const Image before = CrashImage(start_, std::span(events_).first(i), Loss::kNone, 0);
    for (int64_t torn = 0; torn <= 4096; torn += kSectorBytes) {
      Image image = before;
      Apply(image, events_[i], torn);
      EXPECT_EQ(Check(image, PromisedStep(i)), "") << "event " << i << " torn at " << torn;
    }
  }
}

TEST_P(CrashTest, DuringTheRepairOfATornRecordLosesNothing) {
  int num_repairs = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || !IsCommitFile(events_[i].path)) continue;
    Image image = CrashImage(start_, std::span(events_).first(i), Loss::kNone, 0);
    Apply(image, events_[i], 2048);
    int64_t recovered = 0;
    std::vector<DiskEvent> repair;
    ASSERT_EQ(Check(image, PromisedStep(i), &recovered, &repair), "");
    for (size_t done = 0; done <= repair.size(); ++done) {
      const std::span<const DiskEvent> seen = std::span(repair).first(done);
      std::vector<Image> crashes;
      for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne}) {
        crashes.push_back(CrashImage(image, seen, loss, done));
      }
      for (int64_t torn = 0; done > 0 && !repair[done - 1].is_flush && torn <= 4096;
           torn += kSectorBytes) {
        Image& again =
            crashes.emplace_back(CrashImage(image, seen.first(done - 1), Loss::kNone, 0));
        Apply(again, repair[done - 1], torn);
        ++num_repairs;
      }
      for (const Image& again : crashes) {
        int64_t recovered_again = 0;
        EXPECT_EQ(CheckOnce(again, PromisedStep(i), &recovered_again), "");
        EXPECT_EQ(recovered_again, recovered);
      }
    }
  }
  EXPECT_GT(num_repairs, 0);
}

// The image after all steps, with some of it damaged so that `step` is the newest that is whole.
struct DamagedImage {
  std::string what;
  Image image;
  int64_t step = 0;
};

std::vector<DamagedImage> DamagedImages(const Image& whole) {
  std::vector<DamagedImage> images;
  const auto add = [&](std::string what, int64_t step) -> Image& {
    return images.emplace_back(DamagedImage{std::move(what), whole, step}).image;
  };
  // The last step is in slot B.
  for (const std::string name : {"0/weights.fbs", "0/state.fbs"}) {
    std::string& file = add(name, kNumSteps - 1)[name];
    file[file.size() / 2 + 7] ^= 1;
  }
  std::string& tables = add("tables", kNumSteps - 1)["0/seals.fbs"];
  tables[tables.size() / 2 + 7] ^= 1;
  tables[tables.size() / 4 * 3 + 7] ^= 1;
  Image& without_records = add("all records", kNumSteps);
  for (auto& [name, file] : without_records) {
    if (IsCommitFile(name)) file.assign(file.size(), '\0');
  }
  add("records of one folder", kNumSteps)["0/commit.fbs"].assign(8192, '?');
  return images;
}

// The first crash state of a repair, over all points of its `events`, from which another repair
// does not come to `step`; "" when none is.
std::string CrashTest::FirstViolationOfRepair(const Image& damaged,
                                              std::span<const DiskEvent> events, int64_t step) {
  for (size_t done = 0; done <= events.size(); ++done) {
    for (const Loss loss :
         {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne, Loss::kTornLast, Loss::kRandom}) {
      const std::vector<std::string> folders =
          FoldersWith(CrashImage(damaged, events.first(done), loss, done));
      const std::string when =
          fmt::format(" (cut after {} events, loss {})", done, static_cast<int>(loss));
      FaultyDisk disk(Recording());
      const auto again = Repair(folders, disk);
      if (!again.ok()) return MessageOf(again.status()) + when;
      RecordedStore opened(folders);
      if (!opened.store.ok()) return MessageOf(opened.store.status()) + when;
      TensorStore& store = **opened.store;
      if (again->step != step || store.committed().step != step || !HoldsStep(store, step)) {
        return fmt::format("step {} instead of {}", store.committed().step, step) + when;
      }
    }
  }
  return "";
}

TEST_P(CrashTest, ARepairThatIsCutShortIsMadeAnewToTheSameStep) {
  for (const DamagedImage& damaged : DamagedImages(CrashImage(start_, events_, Loss::kNone, 0))) {
    SCOPED_TRACE(damaged.what);
    FaultyDisk recorded(Recording());
    const auto report = Repair(FoldersWith(damaged.image), recorded);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->changed);
    EXPECT_EQ(report->step, damaged.step);
    EXPECT_EQ(FirstViolationOfRepair(damaged.image, recorded.events(), damaged.step), "");
  }
}

// The suite must be able to fail: both copies of a table may be torn when they are not flushed one
// after the other.
TEST_P(CrashTest, WouldBeCaughtIfARepairFlushedNoTableBeforeItsCopy) {
  const DamagedImage damaged = DamagedImages(CrashImage(start_, events_, Loss::kNone, 0)).front();
  FaultyDisk recorded(Recording());
  ASSERT_TRUE(Repair(FoldersWith(damaged.image), recorded).ok());
  std::vector<DiskEvent> events = recorded.events();
  std::erase_if(events, [](const DiskEvent& event) {
    return event.is_flush && event.path.ends_with("/seals.fbs");
  });
  EXPECT_NE(FirstViolationOfRepair(damaged.image, events, damaged.step), "");
}

TEST_P(CrashTest, TheRunGoesOnAfterARecoveryAndMayCrashAgain) {
  // The record of step 3 is in one copy only: the step is real, and the next commit must not tear
  // that copy alone.
  size_t first_copy = 0;
  for (size_t i = events_at_commit_[0]; i < events_at_commit_[1]; ++i) {
    if (!events_[i].is_flush && IsCommitFile(events_[i].path)) {
      first_copy = i;
      break;
    }
  }
  const Image crashed =
      CrashImage(start_, std::span(events_).first(first_copy + 1), Loss::kNone, 0);
  std::vector<DiskEvent> second_run;
  {
    RecordedStore resumed(FoldersWith(crashed));
    ASSERT_TRUE(resumed.store.ok()) << resumed.store.status();
    ASSERT_EQ((*resumed.store)->committed().step, 3);
    ASSERT_EQ(WriteStep(**resumed.store, 4), absl::OkStatus());
    second_run = resumed.disk.events();
  }
  start_ = crashed;
  for (size_t num_events = 0; num_events < second_run.size(); ++num_events) {
    for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kTornLast, Loss::kRandom}) {
      const Image image =
          CrashImage(start_, std::span(second_run).first(num_events), loss, num_events);
      EXPECT_EQ(CheckOnce(image, 3), "") << num_events;
    }
  }
}

// A kill loses nothing that the next process would not read, and makes nothing durable either: what
// that process builds upon what it read, a power cut must not bring down.
TEST_P(CrashTest, APowerCutAfterAKillLosesNothingThatTheNextProcessFound) {
  EXPECT_EQ(FirstViolationAfterKills(/*flushes_first=*/true), "");
}

TEST_P(CrashTest, WouldBeCaughtIfTheNextProcessDidNotFlushWhatItReads) {
  EXPECT_NE(FirstViolationAfterKills(/*flushes_first=*/false), "");
}

// Under TSan for what threads share, which is the same in every shape; it makes each state slow.
#ifdef __SANITIZE_THREAD__
constexpr Shape kShapes[] = {{2, 1}, {1, 2}};
#else
constexpr Shape kShapes[] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}};
#endif

INSTANTIATE_TEST_SUITE_P(Folders, CrashTest, testing::ValuesIn(kShapes), [](const auto& c) {
  return fmt::format("{}x{}", c.param.num_folders, c.param.writes_per_commit);
});

}  // namespace
}  // namespace forebay
