// Which steps of a run are committed. Results do not depend on it: only how much a crash takes, and
// what that insurance costs. Pure.
#pragma once

#include <cstdint>

namespace forebay {

// Where --commit_every does not say, commits of what lives in RAM may take this share of the
// time...
inline constexpr double kMostCommitShare = 0.05;
// ...unless more than this would be lost, as far as one step does not take longer.
inline constexpr double kMostLostSeconds = 600;

struct CommitPace {
  bool only_on_demand = false;  // one copy: a commit between two steps would not be one for long
  int64_t every_steps = 0;      // 0: by time
  int64_t resident_bytes = 0;   // that live in RAM and are written for a commit alone
};

struct SinceCommit {
  int64_t steps = 0;             // the one that has just ended included
  double seconds = 0;            // from the end of the step that was committed
  double step_s = 0;             // that a step takes
  double write_bytes_per_s = 0;  // of the disk; 0: not known yet
};

// How many steps share a commit; 0: none has one that is planned, or it goes by time.
int64_t StepsPerCommit(const CommitPace& pace);

bool CommitIsDue(const CommitPace& pace, const SinceCommit& since);

}  // namespace forebay
