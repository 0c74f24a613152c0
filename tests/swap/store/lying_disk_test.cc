// Disks that say that they have written, and have not: writes that are lost, torn or landed
// elsewhere though they were flushed, bits that flip, flushes that did nothing. No store can
// promise that a step survives those. What it does promise: what opens and passes verification is
// one whole step, anything else is an error that names the damaged file; and a repair leaves one
// whole step or says that there is none.
#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kLyingSteps = 4;
constexpr int kRandomCases = kFewerStates ? 100 : 900;

class LyingDiskTest : public CrashFixture {
 protected:
  void SetUp() override { Record(kLyingSteps); }

  // What was found in the states that were looked at.
  struct Tally {
    int num_whole = 0;
    int num_damaged = 0;  // found when a tile was read
    int num_refused = 0;  // found by opening
    int num_repaired = 0;
  };
  Judge NeverMixed(Tally& tally) {
    return [&](const DiskCase& crash) {
      const Seen& seen = See(ImageOf(start_, events_, crash), /*repair=*/true);
      tally.num_whole += seen.found.whole ? 1 : 0;
      tally.num_damaged += seen.found.opened && !seen.found.error.empty() ? 1 : 0;
      tally.num_refused += seen.found.opened ? 0 : 1;
      tally.num_repaired += seen.repaired ? 1 : 0;
      return seen.problem;
    };
  }

  // Of one fault, behind a commit: what there are two copies of is not missed, and what is damaged
  // of the last step costs that step alone, where there is a step before.
  Judge KeepsWhatItCan() {
    return [&](const DiskCase& crash) -> std::string {
      const Seen& seen = See(ImageOf(start_, events_, crash), /*repair=*/true);
      if (!seen.problem.empty() || crash.fates.empty()) return seen.problem;
      const int64_t promised = PromisedStep(crash.num_events);
      if (seen.found.whole && seen.found.step == promised) return "";
      const std::string& path = events_[crash.fates.begin()->first].path;
      if (IsCommitFile(path) || IsSealsFile(path)) {
        return fmt::format("one damaged copy cost step {}: {}", promised, seen.found.error);
      }
      const bool has_step_before = GetParam().num_slots == kMostSlots && promised > 1;
      if (!has_step_before || (seen.repaired && seen.after.step == promised - 1)) return "";
      return fmt::format("step {} was whole, and not brought back", promised - 1);
    };
  }

  // One write with each of `fates`, at every later commit.
  std::vector<DiskCase> OneFault(size_t write, const std::vector<Fate>& fates) const {
    std::vector<DiskCase> cases;
    for (const size_t num_events : events_at_commit_) {
      if (num_events <= write) continue;
      for (const Fate& fate : fates) cases.push_back({num_events, {{write, fate}}});
    }
    return cases;
  }
  std::vector<size_t> Writes(size_t end) const {
    std::vector<size_t> writes;
    for (size_t i = 0; i < end; ++i) {
      if (!events_[i].is_flush) writes.push_back(i);
    }
    return writes;
  }

  // Another place where a write of its length may land: where some write of the run went.
  Fate Elsewhere(const CounterRng& rng, uint64_t& draw) const {
    const std::vector<size_t> writes = Writes(events_.size());
    const DiskEvent& other = events_[writes[rng.Below(draw++, writes.size())]];
    return Misdirected(NameOf(other.path), other.offset_bytes);
  }
  Fate AnyFate(size_t write, const CounterRng& rng, uint64_t& draw) const {
    switch (rng.Below(draw++, 4)) {
      case 0:
        return Lost();
      case 1:
        return Fate{.kept_sectors = rng.Bits64(draw++)};
      case 2:
        return Elsewhere(rng, draw);
      default:
        return Flipped(static_cast<int64_t>(rng.Below(draw++, 8 * events_[write].data.size())));
    }
  }

  DiskCase FewFaults(const CounterRng& rng) const;
  DiskCase ManyLost(const CounterRng& rng) const;
  DiskCase OldContents(const CounterRng& rng) const;
};

TEST_P(LyingDiskTest, OneWriteThatIsLostTornOrFlippedCostsOneStepAtMost) {
  const Judge judge = KeepsWhatItCan();
  const CounterRng rng(CrashSeed());
  uint64_t draw = 0;
  for (const size_t write : Writes(events_.size())) {
    const auto num_bits = 8 * events_[write].data.size();
    const std::vector<DiskCase> cases =
        OneFault(write, {Lost(), Torn(1), Torn(8), Fate{.kept_sectors = ~uint64_t{0xff}},
                         Fate{.kept_sectors = rng.Bits64(draw++)},
                         Flipped(static_cast<int64_t>(rng.Below(draw++, num_bits)))});
    ASSERT_EQ(Explain(FirstOf(cases, judge), events_, judge), "");
  }
}

TEST_P(LyingDiskTest, AWriteThatLandsElsewhereIsNeverTakenForWhatBelongsThere) {
  Tally tally;
  const Judge judge = NeverMixed(tally);
  const CounterRng rng(CrashSeed(), 1);
  uint64_t draw = 0;
  for (const size_t write : Writes(events_.size())) {
    std::vector<Fate> fates;
    for (int i = 0; i < 4; ++i) fates.push_back(Elsewhere(rng, draw));
    ASSERT_EQ(Explain(FirstOf(OneFault(write, fates), judge), events_, judge), "");
  }
  EXPECT_GT(tally.num_damaged, 0);
  EXPECT_GT(tally.num_whole, 0);
}

// A few writes of any kind, at any moment.
DiskCase LyingDiskTest::FewFaults(const CounterRng& rng) const {
  uint64_t draw = 0;
  DiskCase crash{1 + rng.Below(draw++, events_.size()), {}};
  const std::vector<size_t> writes = Writes(crash.num_events);
  const uint64_t num_faults = 1 + rng.Below(draw++, 6);
  for (uint64_t i = 0; i < num_faults && !writes.empty(); ++i) {
    const size_t write = writes[rng.Below(draw++, writes.size())];
    crash.fates[write] = AnyFate(write, rng, draw);
  }
  return crash;
}

// Flushes that did nothing from some moment on: any of the writes behind it is missing.
DiskCase LyingDiskTest::ManyLost(const CounterRng& rng) const {
  uint64_t draw = 0;
  DiskCase crash{1 + rng.Below(draw++, events_.size()), {}};
  const size_t begin = rng.Below(draw++, crash.num_events);
  const uint64_t percent = 5 + 90 * rng.Below(draw++, 2);
  for (const size_t write : Writes(crash.num_events)) {
    if (write < begin || rng.Below(draw++, 100) >= percent) continue;
    crash.fates[write] =
        rng.Below(draw++, 8) == 0 ? Fate{.kept_sectors = rng.Bits64(draw++)} : Lost();
  }
  return crash;
}

// Some of the files, in some of the folders, are as they were earlier; the others are new.
DiskCase LyingDiskTest::OldContents(const CounterRng& rng) const {
  uint64_t draw = 0;
  DiskCase crash{1 + rng.Below(draw++, events_.size()), {}};
  const size_t begin = rng.Below(draw++, crash.num_events);
  const size_t end = begin + 1 + rng.Below(draw++, crash.num_events - begin);
  const uint64_t old_files = rng.Bits64(draw++);
  for (const size_t write : Writes(end)) {
    if (write < begin) continue;
    const auto name = start_.find(NameOf(events_[write].path));
    const auto file = static_cast<uint64_t>(std::distance(start_.begin(), name));
    if ((old_files >> file & 1U) != 0) crash.fates[write] = Lost();
  }
  return crash;
}

TEST_P(LyingDiskTest, AnyLiesAreFoundOrLeaveAWholeStep) {
  Tally tally;
  const Judge judge = NeverMixed(tally);
  std::vector<DiskCase> cases;
  for (int i = 0; i < kRandomCases; ++i) {
    const CounterRng rng(CrashSeed(), static_cast<uint64_t>(2 + i));
    cases.push_back(i % 3 == 0 ? FewFaults(rng) : i % 3 == 1 ? ManyLost(rng) : OldContents(rng));
  }
  EXPECT_EQ(Explain(FirstOf(cases, judge), events_, judge), "");
  EXPECT_GT(tally.num_whole, 0);
  EXPECT_GT(tally.num_damaged, 0);
  EXPECT_GT(tally.num_refused, 0);
  EXPECT_GT(tally.num_repaired, 0);
}

// Every byte is what was once written there, and verifies against the checksums of its own step:
// the data of a step and what the tables say of it are lost, of the tables all but their heads, and
// the record has landed.
TEST_P(LyingDiskTest, AnEarlierStepInThePlaceOfTheCommittedOneIsNotTakenForIt) {
  Tally tally;
  const Judge judge = NeverMixed(tally);
  const size_t begin = events_at_commit_[kLyingSteps - 2];
  std::vector<DiskCase> cases;
  for (const uint64_t kept_of_tables : {uint64_t{0}, uint64_t{0xff}, ~uint64_t{0xff}}) {
    // The first copies, the second ones, or both, of the tables of some folders; the others are
    // whole.
    for (unsigned copies = 0; copies < 4; ++copies) {
      for (unsigned folders = 1; folders < 1U << GetParam().num_folders; ++folders) {
        DiskCase crash{events_.size(), {}};
        for (const size_t write : Writes(events_.size())) {
          const std::string name = NameOf(events_[write].path);
          const bool is_old = (folders >> (name[0] - '0') & 1U) != 0;
          if (write < begin || !is_old || IsCommitFile(name)) continue;
          if (!IsSealsFile(name)) crash.fates[write] = Lost();
          const auto table_bytes = static_cast<int64_t>(events_[write].data.size());
          const unsigned copy = events_[write].offset_bytes / table_bytes % 2;
          if (IsSealsFile(name) && (copies >> copy & 1U) != 0) {
            crash.fates[write] = {.kept_sectors = kept_of_tables};
          }
        }
        cases.push_back(std::move(crash));
      }
    }
  }
  EXPECT_EQ(Explain(FirstOf(cases, judge), events_, judge), "");
  EXPECT_GT(tally.num_refused + tally.num_damaged, 0);
}

// With one slot, a crash in the middle leaves nothing to go on.
class LyingDiskUnderTwoSlotsTest : public LyingDiskTest {};

// A step was written, and given up by a crash before its record; then another attempt at it is lost
// but for the record and the heads of its tables. Nothing but the root of the checksums tells the
// two attempts apart: what is there is whole, verifies, and has the number of the commit.
TEST_P(LyingDiskUnderTwoSlotsTest, AnAttemptThatWasGivenUpIsNotTakenForTheOneThatWasCommitted) {
  crashed().Put(ImageOf(start_, events_, {events_at_commit_[2], {}}));
  {
    RecordedStore store(crashed());
    ASSERT_EQ(WriteTiles(*store, 40), absl::OkStatus());
    ASSERT_EQ(store->Commit({4, Json{{"attempt", 1}}}), absl::OkStatus());
  }
  Image given_up = crashed().image();
  for (auto& [name, contents] : given_up) {
    if (IsCommitFile(name)) {
      contents = ImageOf(start_, events_, {events_at_commit_[2], {}}).at(name);
    }
  }
  crashed().Put(given_up);
  std::vector<DiskEvent> events;
  {
    RecordedStore store(crashed());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(store->committed().step, 3);
    ASSERT_EQ(WriteStep(*store, 4), absl::OkStatus());
    events = store.events();
  }
  DiskCase crash{events.size(), {}};
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush || IsCommitFile(events[i].path)) continue;
    crash.fates[i] = IsSealsFile(events[i].path) ? Torn(8) : Lost();
  }
  const Seen& seen = See(ImageOf(given_up, events, crash), /*repair=*/true);
  ++num_points_;
  EXPECT_EQ(seen.problem, "");
  EXPECT_FALSE(seen.found.opened);
  EXPECT_TRUE(seen.repaired);
  EXPECT_EQ(seen.after.step, 3);
}

// Two processes that went on from one state, each without the other (a store that was copied); then
// a record of one lies among the files of the other.
TEST_P(LyingDiskTest, ARecordOfAnotherHistoryIsRefused) {
  const Image common = ImageOf(start_, events_, {events_at_commit_[1], {}});
  const auto go_on = [&](const std::vector<int64_t>& steps) {
    crashed().Put(common);
    {
      RecordedStore store(crashed());
      for (const int64_t step : steps) EXPECT_EQ(WriteStep(*store, step), absl::OkStatus());
    }
    return crashed().image();
  };
  // Only records that follow one another directly tell. With one slot each step has two.
  const bool one_slot = GetParam().num_slots == 1;
  const Image one = go_on(one_slot ? std::vector<int64_t>{3} : std::vector<int64_t>{3, 4});
  for (const std::vector<int64_t>& other_steps : {std::vector<int64_t>{30}, {30, 40}}) {
    if (one_slot && other_steps.size() > 1) continue;
    const Image other = go_on(other_steps);
    for (const std::string copy : kCommitNames) {
      Image mixed = one;
      for (auto& [name, contents] : mixed) {
        if (name.substr(name.find('/') + 1) == copy) contents = other.at(name);
      }
      const Seen& seen = See(mixed, /*repair=*/false);
      EXPECT_FALSE(seen.found.opened) << copy;
      EXPECT_EQ(seen.problem, "");
      EXPECT_THAT(seen.found.error, testing::HasSubstr("do not belong to one history"));
      ++num_points_;
    }
  }
}

constexpr RunShape kLyingShapes[] = {{1}, {2}, {.num_slots = 1}, {2, 1, 1}};

INSTANTIATE_TEST_SUITE_P(Folders, LyingDiskTest, testing::ValuesIn(kLyingShapes), NameOfShape);
INSTANTIATE_TEST_SUITE_P(Folders, LyingDiskUnderTwoSlotsTest,
                         testing::Values(RunShape{1}, RunShape{2}), NameOfShape);

}  // namespace
}  // namespace forebay
