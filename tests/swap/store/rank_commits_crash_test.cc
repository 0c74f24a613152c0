// Crashes of two ranks at every moment of a run, each at a moment of its own: what one has done
// before all were prepared, and the other behind that, never goes together. What the two stores are
// then brought to must be one whole step, and no older than what either has promised.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/rank_commits.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kRankSteps = 4;

// The store that opens in one state of a rank's disk.
struct OpenedRank {
  std::string problem;
  bool has_commit = false;
  CommitStanding standing;
  Json trainer;
};

// The outcome when it is brought to the newest step.
struct BroughtRank {
  std::string problem;
  std::vector<DiskEvent> events;
};

class RankCommitsCrashTest : public CrashFixture {
 protected:
  void SetUp() override { Record(kRankSteps); }

  // Both ranks run the same, so one recording stands for each.
  const OpenedRank& Open(const Image& image) {
    const auto [entry, is_new] = opened_.try_emplace(DigestOf(image));
    OpenedRank& rank = entry->second;
    if (!is_new) return rank;
    ++num_states_;
    crashed().Put(image);
    RecordedStore store(crashed());
    if (!store.ok()) {
      rank.problem = MessageOf(store.status());
      return rank;
    }
    rank.has_commit = store->has_commit();
    if (!rank.has_commit) return rank;
    rank.standing = StandingOf(*store);
    rank.trainer = store->committed().trainer;
    return rank;
  }

  const BroughtRank& Bring(const Image& image, const OpenedRank& newest) {
    const auto [entry, is_new] = brought_.try_emplace({DigestOf(image), newest.standing.step});
    BroughtRank& rank = entry->second;
    if (!is_new) return rank;
    ++num_states_;
    crashed().Put(image);
    {
      RecordedStore store(crashed());
      const absl::Status status = BringToStep(newest.standing, newest.trainer, *store);
      rank.events = store.events();
      if (!status.ok()) rank.problem = MessageOf(status);
    }
    const Found found = Look(crashed());
    if (!found.whole || found.step != newest.standing.step) {
      rank.problem += fmt::format("found step {} instead of {}; {} {}", found.step,
                                  newest.standing.step, found.error, found.problem);
    }
    return rank;
  }

  // "" when two ranks with these disks come to one whole step from `promised` on.
  std::string Judge(const Image& a, const Image& b, int64_t promised) {
    const OpenedRank& first = Open(a);
    const OpenedRank& second = Open(b);
    if (!first.problem.empty() || !second.problem.empty()) return first.problem + second.problem;
    // The first commit is that of a creation, which is begun anew on all ranks.
    if (!first.has_commit || !second.has_commit) {
      return promised <= 1 ? "" : "no step is committed";
    }
    const auto newest = NewestRank(std::vector{first.standing, second.standing});
    if (!newest.ok()) return MessageOf(newest.status());
    const OpenedRank& target = *newest == 0 ? first : second;
    if (target.standing.step < promised || target.standing.step > promised + 1) {
      return fmt::format("promised {}, found {}", promised, target.standing.step);
    }
    return Bring(a, target).problem + Bring(b, target).problem;
  }

  // Whether one rank may have come so far while the other did.
  static bool IsLegal(size_t a, size_t b, const std::vector<size_t>& votes) {
    const auto is_behind = [&](size_t one, size_t other) {
      return std::ranges::any_of(votes, [&](size_t vote) { return one > vote && other < vote; });
    };
    return !is_behind(a, b) && !is_behind(b, a);
  }

  // States of a rank that crashed behind so many events.
  std::vector<Image> ImagesAfter(size_t num_events, uint64_t stream, size_t most) {
    const CrashChoice choice = {.writes_for_all_subsets = 1, .tear_last = false, .num_random = 1};
    std::vector<DiskCase> cases =
        CrashesAfter(events_, num_events, CounterRng(CrashSeed(), stream), choice);
    std::vector<Image> images;
    for (size_t i = 0; i < std::min(most, cases.size()); ++i) {
      // The first, the last, and some between.
      const DiskCase& crash = cases[i * (cases.size() - 1) / (most - 1)];
      images.push_back(ImageOf(start_, events_, crash));
    }
    return images;
  }

  struct Effort {
    size_t stride = 1;  // in pairs of moments
    size_t states = 4;  // of a rank at a moment, at least 2
  };

  // The first violation over all pairs of moments that `votes` allow, or as many as `effort` says.
  std::string FirstViolation(const std::vector<size_t>& votes, const Effort& effort) {
    std::vector<std::vector<Image>> images;
    for (size_t i = 0; i <= events_.size(); ++i) images.push_back(ImagesAfter(i, i, effort.states));
    // Late moments first, as a violation is most likely there.
    for (size_t a = images.size(); a-- > 0;) {
      for (size_t b = (a + CrashSeed()) % effort.stride; b <= a; b += effort.stride) {
        if (!IsLegal(a, b, votes)) continue;
        for (const Image& first : images[a]) {
          for (const Image& second : images[b]) {
            ++num_points_;
            std::string problem = Judge(first, second, PromisedStep(a));
            if (problem.empty()) continue;
            return fmt::format("behind {} and {} of {} events: {}\nRepeat with: {}\n", a, b,
                               events_.size(), problem, RepeatCommand());
          }
        }
      }
    }
    return "";
  }

  std::map<std::string, OpenedRank> opened_;
  std::map<std::pair<std::string, int64_t>, BroughtRank> brought_;
};

TEST_P(RankCommitsCrashTest, AtAnyTwoMomentsLeaveOneStep) {
  EXPECT_EQ(FirstViolation(events_before_record_, kFewerStates ? Effort{4, 2} : Effort{}), "");
}

// While a rank is brought to the step of the others it may crash again.
TEST_P(RankCommitsCrashTest, WhileARankIsBroughtToTheStepLeavesThatStep) {
  int num_brought = 0;
  for (size_t commit = 0; commit < events_before_record_.size(); ++commit) {
    const Image prepared = ImageOf(start_, events_, {events_before_record_[commit], {}});
    const Image published = ImageOf(start_, events_, {events_at_commit_[commit], {}});
    if (!Open(prepared).has_commit) continue;
    const std::vector<DiskEvent> events = Bring(prepared, Open(published)).events;
    for (size_t at = 0; at <= events.size(); ++at) {
      for (const DiskCase& crash : CrashesAfter(events, at, CounterRng(CrashSeed(), at), {})) {
        ++num_points_;
        EXPECT_EQ(
            Judge(published, ImageOf(prepared, events, crash), static_cast<int64_t>(commit) + 1),
            "")
            << commit << " " << RepeatCommand();
      }
    }
    ++num_brought;
  }
  EXPECT_EQ(num_brought, kRankSteps - 1);
}

// The suite must be able to fail: where ranks do not wait for one another, one publishes what
// another has not prepared.
TEST_P(RankCommitsCrashTest, WouldBeCaughtIfRanksDidNotWaitForOneAnother) {
  EXPECT_NE(FirstViolation({}, {}), "");
}

// And where they wait before the step is durable.
TEST_P(RankCommitsCrashTest, WouldBeCaughtIfTheyWaitedBeforeTheFlush) {
  std::vector<size_t> votes;
  for (size_t vote : events_before_record_) {
    while (vote > 0 && events_[vote - 1].is_flush) --vote;
    votes.push_back(vote);
  }
  // A step that changes no tile has nothing to flush.
  EXPECT_NE(FirstViolation(votes, {}), "");
}

// A store that was put back from a copy of another time is named.
TEST_P(RankCommitsCrashTest, StoresOfTwoTimesAreRefused) {
  const Image before = ImageOf(start_, events_, {events_at_commit_[0], {}});
  const Image newest = ImageOf(start_, events_, {events_.size(), {}});
  const auto found = NewestRank(std::vector{Open(newest).standing, Open(before).standing});
  EXPECT_EQ(ExitCodeOf(found.status()), ExitCode::kCorrupt) << found.status();
  EXPECT_THAT(MessageOf(found.status()),
              testing::HasSubstr("rank 0 is at step 4, that of rank 1 at step 1"));
}

constexpr RunShape kRankShapes[] = {
    {},
    {.num_folders = 2},
    {.writes_per_commit = 2},
    {.skips = true},
};
INSTANTIATE_TEST_SUITE_P(Folders, RankCommitsCrashTest, testing::ValuesIn(kRankShapes),
                         NameOfShape);

}  // namespace
}  // namespace forebay
