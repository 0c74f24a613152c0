// Looks from time to time how warm the drives of a run are: one that is too warm slows down, and
// every step with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "forebay/base/clock.h"

namespace forebay {

// Owned by the training thread.
class DriveWatch {
 public:
  // `disks`: their folders in /sys/devices (measure/host/physical_disks.h). Those without a sensor
  // are left out.
  explicit DriveWatch(std::vector<std::string> disks, double look_every_s = 10);

  // To be told of each step, behind it. Reads the sensors, if it has not done so lately. `note`
  // takes a line for each drive that has become too warm, and one when that is over.
  void AfterStep(const std::function<void(const std::string& line)>& note);

 private:
  struct Drive {
    std::string folder;
    bool is_too_warm = false;
  };
  std::vector<Drive> drives_;
  const double look_every_s_;
  Stopwatch since_look_;
  bool has_looked_ = false;
};

}  // namespace forebay
