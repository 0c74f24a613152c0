// Says how far a run is with writing out what it has in memory.
#pragma once

#include "forebay/base/clock.h"
#include "forebay/train/options/train_observer.h"

namespace forebay {

// Used on the training thread. `observer` must outlive it.
class SavingProgress {
 public:
  // `long_s`: what is told of only where it is long is so from here on.
  explicit SavingProgress(TrainObserver* observer, double long_s = 2)
      : observer_(*observer), long_s_(long_s) {}

  // A commit comes that is work of its own.
  void Begin() { observer_.OnPhase("saving", 0); }
  // LayerSessionOptions::on_saving. Told of where the commit is long.
  void Show(double fraction) {
    if (fraction < last_fraction_) since_begin_.Restart();
    last_fraction_ = fraction;
    if (since_begin_.Seconds() >= long_s_) observer_.OnPhase("saving", fraction);
  }

 private:
  TrainObserver& observer_;
  const double long_s_;
  double last_fraction_ = 2;
  Stopwatch since_begin_;  // of this commit
};

}  // namespace forebay
