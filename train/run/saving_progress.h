// Says how far a run is with writing out what it has in memory.
#pragma once

#include <string>
#include <utility>

#include "forebay/base/clock.h"
#include "forebay/train/options/train_observer.h"

namespace forebay {

// Used on the training thread. `observer` must outlive it.
class SavingProgress {
 public:
  // `long_s`: what is told of only where it is long is so from here on.
  explicit SavingProgress(TrainObserver* observer, double long_s = 2)
      : observer_(*observer), long_s_(long_s) {}

  // The commit that comes is work of its own, of this name.
  void Begin(const std::string& phase) {
    phase_ = phase;
    has_name_ = true;
    observer_.OnPhase(phase_, 0);
  }
  // LayerSessionOptions::on_saving. Told of where the commit is long.
  void Show(double fraction) {
    if (fraction < last_fraction_) {
      since_begin_.Restart();
      if (!std::exchange(has_name_, false)) phase_ = "saving";
    }
    last_fraction_ = fraction;
    if (since_begin_.Seconds() >= long_s_) observer_.OnPhase(phase_, fraction);
  }

 private:
  TrainObserver& observer_;
  const double long_s_;
  std::string phase_;
  bool has_name_ = false;  // from Begin until its commit begins
  double last_fraction_ = 2;
  Stopwatch since_begin_;  // of this commit
};

}  // namespace forebay
