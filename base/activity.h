// What a thread does, told to whoever waits for it: so a wait can be counted by its causes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "forebay/base/trace.h"

namespace forebay {

// What a step may wait for.
enum class Activity : uint8_t {
  kOther,        // nothing that has a name here: a thread has to wake up
  kReadWeights,  // from the disk
  kReadState,    // the same: optimizer state, and gradients that wait there
  kUpdate,       // the optimizer's arithmetic
  kWrite,        // what was updated goes to the disk
  kDevice,       // a GPU still reads a buffer
  kHandOver,     // gradients find no room where they wait or are applied
  kActivations,  // go to the disk, or come back
  kCommit,       // is flushed
  kExport,       // still reads what would be written over
  kRanks,        // other ranks of the run have not come so far
};
inline constexpr size_t kNumActivities = 11;
// "weights", "state", "update", ...: in metrics.
std::string_view NameOf(Activity activity);

struct ActivityTimes {
  std::array<double, kNumActivities> seconds{};

  double& operator[](Activity activity) { return seconds[static_cast<size_t>(activity)]; }
  double operator[](Activity activity) const { return seconds[static_cast<size_t>(activity)]; }
  double Total() const;
  ActivityTimes& operator+=(const ActivityTimes& other);
  friend ActivityTimes operator-(ActivityTimes a, const ActivityTimes& b);
};

// One thread enters activities, any thread reads.
class ActivityClock {
 public:
  // What the thread does from now on. Returns what it did before.
  Activity Enter(Activity activity);
  // How long it has done what, up to now. The differences of two readings sum to the time between.
  ActivityTimes Times() const;
  // From now on ActivityScope on the calling thread enters here, until another clock's call.
  void BelongsToThisThread();

 private:
  using Clock = std::chrono::steady_clock;
  void AddTo(ActivityTimes& times, Clock::time_point now) const;

  mutable std::mutex mutex_;
  ActivityTimes times_;  // mutex_, as all below: without the current activity
  Activity current_ = Activity::kOther;
  Clock::time_point since_ = Clock::now();
};

// The calling thread does this until the end of the scope: as its clock has it, if it has one, and
// in traces.
class ActivityScope {
 public:
  explicit ActivityScope(Activity activity);
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  ActivityClock* const clock_;
  Activity before_ = Activity::kOther;
  const TraceScope trace_;
};

}  // namespace forebay
