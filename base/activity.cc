#include "forebay/base/activity.h"

#include <numeric>

namespace forebay {
namespace {

thread_local ActivityClock* clock_of_this_thread = nullptr;

}  // namespace

std::string_view NameOf(Activity activity) {
  switch (activity) {
    case Activity::kReadWeights:
      return "weights";
    case Activity::kReadState:
      return "state";
    case Activity::kUpdate:
      return "update";
    case Activity::kWrite:
      return "write";
    case Activity::kDevice:
      return "device";
    case Activity::kHandOver:
      return "hand_over";
    case Activity::kActivations:
      return "activations";
    case Activity::kCommit:
      return "commit";
    case Activity::kExport:
      return "export";
    case Activity::kRanks:
      return "ranks";
    case Activity::kOther:
      break;
  }
  return "other";
}

double ActivityTimes::Total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

ActivityTimes& ActivityTimes::operator+=(const ActivityTimes& other) {
  for (size_t i = 0; i < kNumActivities; ++i) seconds[i] += other.seconds[i];
  return *this;
}

ActivityTimes operator-(ActivityTimes a, const ActivityTimes& b) {
  for (size_t i = 0; i < kNumActivities; ++i) a.seconds[i] -= b.seconds[i];
  return a;
}

void ActivityClock::AddTo(ActivityTimes& times, Clock::time_point now) const {
  times[current_] += std::chrono::duration<double>(now - since_).count();
}

Activity ActivityClock::Enter(Activity activity) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  AddTo(times_, now);
  since_ = now;
  const Activity before = current_;
  current_ = activity;
  return before;
}

ActivityTimes ActivityClock::Times() const {
  const std::lock_guard lock(mutex_);
  ActivityTimes times = times_;
  AddTo(times, Clock::now());
  return times;
}

void ActivityClock::BelongsToThisThread() {
  clock_of_this_thread = this;
}

ActivityScope::ActivityScope(Activity activity) : clock_(clock_of_this_thread), trace_(activity) {
  if (clock_ != nullptr) before_ = clock_->Enter(activity);
}

ActivityScope::~ActivityScope() {
  if (clock_ != nullptr) clock_->Enter(before_);
}

}  // namespace forebay
