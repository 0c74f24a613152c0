#include "forebay/offload/commit_policy.h"

namespace forebay {

int64_t StepsPerCommit(const CommitPace& pace) {
  if (pace.only_on_demand) return 0;
  return pace.every_steps > 0 ? pace.every_steps : pace.resident_bytes == 0 ? 1 : 0;
}

bool CommitIsDue(const CommitPace& pace, const SinceCommit& since) {
  if (pace.only_on_demand) return false;
  if (pace.every_steps > 0) return since.steps >= pace.every_steps;
  if (pace.resident_bytes == 0 || since.write_bytes_per_s <= 0) return true;
  // What is written beside the computation may cost less; never more.
  const double commit_s = static_cast<double>(pace.resident_bytes) / since.write_bytes_per_s;
  // Until the commit that is decided now is durable, the forward pass of the next step goes by; and
  // what is put off now is decided a step later.
  const double until_durable_s = since.seconds + 2 * since.step_s + commit_s;
  return since.seconds * kMostCommitShare >= commit_s || until_durable_s > kMostLostSeconds;
}

}  // namespace forebay
