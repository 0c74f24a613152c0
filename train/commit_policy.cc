#include "forebay/train/commit_policy.h"

namespace forebay {

bool CommitIsDue(const CommitPace& pace, const SinceCommit& since) {
  if (pace.only_on_demand) return false;
  if (pace.every_steps > 0) return since.steps >= pace.every_steps;
  if (pace.resident_bytes == 0 || since.write_bytes_per_s <= 0) return true;
  // What is written beside the computation may cost less; never more.
  const double commit_s = static_cast<double>(pace.resident_bytes) / since.write_bytes_per_s;
  return since.seconds * kMostCommitShare >= commit_s ||
         since.seconds + since.step_s > kMostLostSeconds;
}

}  // namespace forebay
