// Crashes at every moment of a small run. A recorded run gives the writes and flushes that reached
// the disk; the legal states of the disk at every point are rebuilt (writes without a later flush
// may be missing or torn: every subset of few writes, samples of more), and what opens there must
// be one whole step, and no older than the last one that was promised. A process that is killed
// leaves its unflushed writes to the next one, which reads them; a power cut then loses those of
// both. one_slot_crash_test.cc has stores that promise less, lying_disk_test.cc disks that do.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kCrashSteps = 4;

class CrashTest : public CrashFixture {
 protected:
  void SetUp() override { Record(kCrashSteps); }

  // "" when `image` opens as one whole step, no older than `promised`; else what is wrong. The step
  // goes to `recovered`.
  std::string Check(const Image& image, int64_t promised, int64_t* recovered = nullptr) {
    const Seen& seen = See(image, /*repair=*/false);
    const Found& found = seen.found;
    if (recovered != nullptr) *recovered = found.step;
    if (!seen.problem.empty()) return seen.problem;
    if (!found.opened) return found.error;
    if (found.step < 0) return promised == 0 ? "" : "no step is committed";
    if (found.step < promised || found.step > promised + 1) {
      return fmt::format("promised {}, found {}", promised, found.step);
    }
    return found.whole ? "" : found.error;
  }
  Judge JudgeOf(const std::vector<DiskEvent>& events) {
    return [&](const DiskCase& crash) {
      return Check(ImageOf(start_, events, crash), PromisedStep(crash.num_events));
    };
  }

  // The recorded events without those that `is_left_out`; what was promised when stays true.
  std::vector<DiskEvent> Without(const std::function<bool(size_t)>& is_left_out) {
    std::vector<DiskEvent> events;
    std::vector<size_t> commits;
    for (size_t i = 0; i < events_.size(); ++i) {
      if (!is_left_out(i)) events.push_back(events_[i]);
      if (std::ranges::count(events_at_commit_, i + 1) > 0) commits.push_back(events.size());
    }
    events_at_commit_ = commits;
    return events;
  }

  // A process that goes on where another one was killed: what it finds, and its own events up to
  // the commit of one more step.
  struct Resumed {
    int64_t step = 0;
    size_t num_events_of_open = 0;
    std::vector<DiskEvent> events;
  };
  void ResumeAfterKill(const Image& left, Resumed& next) {
    crashed().Put(left);
    RecordedStore resumed(crashed());
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    next.num_events_of_open = resumed.events().size();
    next.step = resumed->committed().step;
    ASSERT_EQ(WriteStep(*resumed, next.step + 1), absl::OkStatus());
    next.events = resumed.events();
  }

  std::string FirstViolationAfterKills(bool makes_durable, size_t commit = 2);
  std::string FirstViolationAfterAFailedFlush(bool writes_again);
  std::string FirstViolationOfTornRecords();
  std::string FirstViolationOfRepair(const Image& damaged, std::span<const DiskEvent> events,
                                     int64_t step);
};

TEST_P(CrashTest, AtEveryMomentLeavesOneWholeStep) {
  const Judge judge = JudgeOf(events_);
  // With one folder and one write of each tile no more are without a flush at any time.
  const bool is_small = GetParam().num_folders == 1 && GetParam().writes_per_commit == 1;
  CrashChoice choice;
  if (is_small && !kFewerStates) choice.writes_for_all_subsets = 8;
  EXPECT_EQ(Explain(FirstOnHonestDisk(events_, judge, choice), events_, judge), "");
}

// The suite must be able to fail: without the flush of the data before the record, some crash mixes
// steps.
TEST_P(CrashTest, WouldBeCaughtIfTheDataWereNotFlushedBeforeTheRecord) {
  const std::vector<DiskEvent> events =
      Without([&](size_t i) { return events_[i].is_flush && !IsCommitFile(events_[i].path); });
  EXPECT_TRUE(FirstOnHonestDisk(events, JudgeOf(events)).has_value());
}

// Nor without that between the two copies: both may be torn then, or one folder have the record in
// its second copy before another has it at all.
TEST_P(CrashTest, WouldBeCaughtIfTheFirstCopiesWereNotFlushedBeforeTheSecond) {
  std::map<std::string, int> num_flushes;  // by commit file
  bool is_open = false;                    // what opening flushes stays
  const std::vector<DiskEvent> events = Without([&](size_t i) {
    is_open |= !events_[i].is_flush;
    return is_open && events_[i].is_flush && IsCommitFile(events_[i].path) &&
           num_flushes[events_[i].path]++ % 2 == 0;
  });
  EXPECT_TRUE(FirstOnHonestDisk(events, JudgeOf(events)).has_value());
}

// Of a failure of which the cause is known, all that has nothing to do with it is left out: one
// write that was lost, and the crash right behind the first record that speaks of it.
TEST_P(CrashTest, WouldBeCaughtAndMadeAsSmallAsItsCause) {
  const std::vector<DiskEvent> events =
      Without([&](size_t i) { return events_[i].is_flush && !IsCommitFile(events_[i].path); });
  const Judge judge = JudgeOf(events);
  // Of the last step all tiles are lost, and one record is torn, at the end of all.
  DiskCase crash{events.size(), {}};
  for (const size_t i : UnflushedWrites(events)) {
    if (i >= events_at_commit_[kCrashSteps - 2] && !IsSealsFile(events[i].path)) {
      crash.fates[i] = Lost();
    }
  }
  for (size_t i = events.size(); i-- > 0;) {
    if (events[i].is_flush || !IsCommitFile(events[i].path)) continue;
    crash.fates[i] = Torn(3);
    break;
  }
  ASSERT_NE(judge(crash), "");
  const DiskCase least = Shrink(crash, [&](const DiskCase& c) { return !judge(c).empty(); });
  ASSERT_EQ(least.fates.size(), 1u) << Describe(events, least);
  const auto& [lost, fate] = *least.fates.begin();
  EXPECT_FALSE(IsCommitFile(events[lost].path)) << Describe(events, least);
  const DiskEvent& last = events[least.num_events - 1];
  EXPECT_TRUE(!last.is_flush && IsCommitFile(last.path)) << Describe(events, least);
  const std::string text = Explain(Violation{crash, ""}, events, judge);
  EXPECT_THAT(
      text, testing::HasSubstr(fmt::format("event {}: write {} at {}, {} bytes: lost; not flushed",
                                           lost, NameOf(events[lost].path),
                                           events[lost].offset_bytes, events[lost].data.size())));
  EXPECT_THAT(text, testing::HasSubstr(fmt::format("FOREBAY_CRASH_SEED={} ", CrashSeed())));
}

// Into any of its sectors.
TEST_P(CrashTest, ATornRecordInEitherCopyLeavesTheOther) {
  const Judge judge = JudgeOf(events_);
  std::vector<DiskCase> cases;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || !IsCommitFile(events_[i].path)) continue;
    for (uint64_t kept = 0; kept < 256; kept += kFewerStates ? 15 : 1) {
      cases.push_back({i + 1, {{i, Fate{.kept_sectors = kept}}}});
    }
  }
  EXPECT_EQ(Explain(FirstOf(cases, judge), events_, judge), "");
}

// What is wrong after a crash while opening a store makes up for a torn record; "" when nothing is.
std::string CrashTest::FirstViolationOfTornRecords() {
  int num_repairs = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || !IsCommitFile(events_[i].path)) continue;
    // Before the crash it was promised no more than before the record.
    const int64_t promised = PromisedStep(i);
    const Image image = ImageOf(start_, events_, {i + 1, {{i, Torn(4)}}});
    int64_t recovered = 0;
    const std::string torn = Check(image, promised, &recovered);
    if (!torn.empty()) return torn;
    const std::vector<DiskEvent> repair = See(image, false).found.on_open;
    const Judge judge = [&](const DiskCase& crash) -> std::string {
      int64_t again = 0;
      std::string problem = Check(ImageOf(image, repair, crash), promised, &again);
      if (!problem.empty() || again == recovered) return problem;
      return fmt::format("step {} after step {}", again, recovered);
    };
    std::string violation = Explain(FirstOnHonestDisk(repair, judge), repair, judge);
    if (!violation.empty()) return violation;
    num_repairs += std::ranges::all_of(repair, &DiskEvent::is_flush) ? 0 : 1;
  }
  return num_repairs > 0 ? "" : "nothing was made up for";
}

TEST_P(CrashTest, DuringTheRepairOfATornRecordLosesNothing) {
  EXPECT_EQ(FirstViolationOfTornRecords(), "");
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
    std::string& file = add(name, kCrashSteps - 1)[name];
    file[file.size() / 2 + 7] ^= 1;
  }
  Image& without_tables = add("tables", kCrashSteps - 1);
  for (const std::string name : kSealsNames) {
    std::string& tables = without_tables["0/" + name];
    tables[tables.size() / 2 + 7] ^= 1;
  }
  Image& without_records = add("all records", kCrashSteps);
  for (auto& [name, file] : without_records) {
    if (IsCommitFile(name)) file.assign(file.size(), '\0');
  }
  Image& without_records_of_one = add("records of one folder", kCrashSteps);
  for (const std::string name : kCommitNames) {
    without_records_of_one["0/" + name].assign(8192, '?');
  }
  return images;
}

// The first crash state of a repair, over all points of its `events`, from which another repair
// does not come to `step`; "" when none is.
std::string CrashTest::FirstViolationOfRepair(const Image& damaged,
                                              std::span<const DiskEvent> events, int64_t step) {
  std::map<std::string, std::string> checked;  // by the state's digest
  const Judge judge = [&](const DiskCase& crash) -> std::string {
    const Image image = ImageOf(damaged, events, crash);
    const auto [entry, is_new] = checked.try_emplace(DigestOf(image));
    std::string& problem = entry->second;
    if (!is_new) return problem;
    crashed().Put(image);
    const auto again = RepairStore(crashed());
    if (!again.ok()) return problem = MessageOf(again.status());
    const Found found = Look(crashed());
    if (again->step != step || found.step != step || !found.whole) {
      problem = fmt::format("step {} instead of {}; {}", found.step, step, found.error);
    }
    return problem;
  };
  const CrashChoice choice = {.writes_for_all_subsets = 4, .num_random = 2};
  const auto violation = FirstOnHonestDisk(events, judge, choice);
  num_states_ += static_cast<int64_t>(checked.size());
  return Explain(violation, events, judge);
}

TEST_P(CrashTest, ARepairThatIsCutShortIsMadeAnewToTheSameStep) {
  const Image last = ImageOf(start_, events_, {events_.size(), {}});
  for (const DamagedImage& damaged : DamagedImages(last)) {
    SCOPED_TRACE(damaged.what);
    crashed().Put(damaged.image);
    std::vector<DiskEvent> events;
    const auto report = RepairStore(crashed(), &events);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->changed);
    EXPECT_EQ(report->step, damaged.step);
    EXPECT_EQ(FirstViolationOfRepair(damaged.image, events, damaged.step), "");
  }
}

// The suite must be able to fail: both copies of a table may be torn when they are not flushed one
// after the other.
TEST_P(CrashTest, WouldBeCaughtIfARepairFlushedNoTableBeforeItsCopy) {
  const DamagedImage damaged =
      DamagedImages(ImageOf(start_, events_, {events_.size(), {}})).front();
  crashed().Put(damaged.image);
  std::vector<DiskEvent> events;
  ASSERT_TRUE(RepairStore(crashed(), &events).ok());
  std::erase_if(events,
                [](const DiskEvent& event) { return event.is_flush && IsSealsFile(event.path); });
  EXPECT_NE(FirstViolationOfRepair(damaged.image, events, damaged.step), "");
}

TEST_P(CrashTest, TheRunGoesOnAfterARecoveryAndMayCrashAgain) {
  // The record of step 3 is in one copy only: the step is real, and the next commit must not tear
  // that copy alone.
  size_t first_copy = events_at_commit_[1];
  while (events_[first_copy].is_flush || !IsCommitFile(events_[first_copy].path)) ++first_copy;
  const Image crashed_at = ImageOf(start_, events_, {first_copy + 1, {}});
  Resumed second_run;
  ResumeAfterKill(crashed_at, second_run);
  ASSERT_EQ(second_run.step, 3);
  const Judge judge = [&](const DiskCase& crash) {
    return Check(ImageOf(crashed_at, second_run.events, crash),
                 crash.num_events == second_run.events.size() ? 4 : 3);
  };
  EXPECT_EQ(Explain(FirstOnHonestDisk(second_run.events, judge), second_run.events, judge), "");
}

// What is wrong after a kill around commit number `commit` (from 0), from its first record on, and
// a power cut at any moment of the process that goes on; "" when nothing is. `makes_durable`: or as
// if it had not written and flushed again what it read.
std::string CrashTest::FirstViolationAfterKills(bool makes_durable, size_t commit) {
  size_t begin = events_at_commit_[commit - 1];
  while (events_[begin].is_flush || !IsCommitFile(events_[begin].path)) ++begin;
  for (size_t killed = begin; killed <= events_at_commit_[commit]; ++killed) {
    Resumed next;
    ResumeAfterKill(ImageOf(start_, events_, {killed, {}}), next);
    if (testing::Test::HasFailure()) return "the next process did not go on";
    std::vector<DiskEvent> events(events_.begin(),
                                  events_.begin() + static_cast<ptrdiff_t>(killed));
    const size_t skipped = makes_durable ? 0 : next.num_events_of_open;
    events.insert(events.end(), next.events.begin() + static_cast<ptrdiff_t>(skipped),
                  next.events.end());
    const size_t opened = killed + next.num_events_of_open - skipped;
    const Judge judge = [&](const DiskCase& crash) {
      // Of the next process no commit counts but what it found.
      const int64_t promised =
          crash.num_events >= opened ? next.step : PromisedStep(std::min(killed, crash.num_events));
      return Check(ImageOf(start_, events, crash), promised);
    };
    for (size_t cut = killed; cut <= events.size(); ++cut) {
      const CrashChoice choice = {.writes_for_all_subsets = 4, .tear_last = false, .num_random = 4};
      const std::vector<DiskCase> cases =
          CrashesAfter(events, cut, CounterRng(CrashSeed() + killed, cut), choice);
      const auto violation = FirstOf(cases, judge);
      if (violation.has_value()) {
        return fmt::format("killed behind event {}: ", killed - 1) +
               Explain(violation, events, judge);
      }
    }
  }
  return "";
}

// A kill loses nothing that the next process would not read, and makes nothing durable either: what
// that process builds upon what it read, a power cut must not bring down.
TEST_P(CrashTest, APowerCutAfterAKillLosesNothingThatTheNextProcessFound) {
  EXPECT_EQ(FirstViolationAfterKills(/*makes_durable=*/true), "");
}

TEST_P(CrashTest, WouldBeCaughtIfTheNextProcessMadeNothingDurableOfWhatItReads) {
  EXPECT_NE(FirstViolationAfterKills(/*makes_durable=*/false), "");
}

// The last folder's first copy of the newest record could not be flushed, and its process ended.
// The next process reads it from a cache, which a power cut then takes, whatever was flushed
// meanwhile. `writes_again`: or as if that process had left first copies alone that are as they
// should be.
std::string CrashTest::FirstViolationAfterAFailedFlush(bool writes_again) {
  const int num_folders = GetParam().num_folders;
  const size_t before = events_at_commit_[events_at_commit_.size() - 2];
  size_t behind = before;
  for (int num_copies = 0; num_copies < num_folders; ++behind) {
    if (!events_[behind].is_flush && IsCommitFile(events_[behind].path)) ++num_copies;
  }
  const std::string lost = fmt::format("{}/{}", num_folders - 1, kCommitName);
  const Image in_cache = ImageOf(start_, events_, {behind, {}});
  Image on_disk = in_cache;
  on_disk[lost] = ImageOf(start_, events_, {before, {}}).at(lost);
  Resumed next;
  ResumeAfterKill(in_cache, next);
  if (testing::Test::HasFailure()) return "the next process did not go on";
  size_t opened = next.num_events_of_open;
  for (size_t i = 0; i < opened && !writes_again; ++i) {
    if (next.events[i].is_flush || NameOf(next.events[i].path) != lost) continue;
    next.events.erase(next.events.begin() + static_cast<ptrdiff_t>(i));
    --opened;
  }
  const Judge judge = [&](const DiskCase& crash) {
    return Check(ImageOf(on_disk, next.events, crash),
                 crash.num_events >= opened ? next.step : next.step - 1);
  };
  return Explain(FirstOnHonestDisk(next.events, judge), next.events, judge);
}

TEST_P(CrashTest, APowerCutAfterAFlushThatFailedLosesNothingThatTheNextProcessFound) {
  EXPECT_EQ(FirstViolationAfterAFailedFlush(/*writes_again=*/true), "");
}

TEST_P(CrashTest, WouldBeCaughtIfFirstCopiesWereNotWrittenAgain) {
  if (GetParam().num_folders == 1) GTEST_SKIP() << "one folder has its second copy";
  EXPECT_NE(FirstViolationAfterAFailedFlush(/*writes_again=*/false), "");
}

// Sanitizers, which make each state slow, see in a part of the shapes what they would in all.
#if defined(__SANITIZE_THREAD__)
constexpr RunShape kCrashShapes[] = {{2}, {.writes_per_commit = 2}};
constexpr RunShape kSkippedShapes[] = {{.skips = true}};
#elif defined(__SANITIZE_ADDRESS__)
constexpr RunShape kCrashShapes[] = {
    {2}, {.writes_per_commit = 2}, {.num_folders = 2, .layout = Layout::kInt8Moments}};
constexpr RunShape kSkippedShapes[] = {{.num_folders = 2, .skips = true}};
#else
constexpr RunShape kSkippedShapes[] = {{.skips = true}, {.num_folders = 2, .skips = true}};
constexpr RunShape kCrashShapes[] = {
    {1}, {2}, {3}, {.writes_per_commit = 2}, {.num_folders = 2, .layout = Layout::kInt8Moments}};
#endif

// Steps between others that change no tile.
class SkippedStepCrashTest : public CrashTest {};

TEST_P(SkippedStepCrashTest, AtEveryMomentLeavesOneWholeStep) {
  const Judge judge = JudgeOf(events_);
  EXPECT_EQ(Explain(FirstOnHonestDisk(events_, judge), events_, judge), "");
}

TEST_P(SkippedStepCrashTest, DuringTheRepairOfATornRecordLosesNothing) {
  EXPECT_EQ(FirstViolationOfTornRecords(), "");
}

TEST_P(SkippedStepCrashTest, APowerCutAfterAKillLosesNothingThatTheNextProcessFound) {
  for (const size_t commit : {1, 2}) {
    EXPECT_EQ(FirstViolationAfterKills(/*makes_durable=*/true, commit), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, SkippedStepCrashTest, testing::ValuesIn(kSkippedShapes),
                         NameOfShape);
INSTANTIATE_TEST_SUITE_P(Folders, CrashTest, testing::ValuesIn(kCrashShapes), NameOfShape);

}  // namespace
}  // namespace forebay
