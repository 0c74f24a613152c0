// How warm a drive is, by its own sensor: one that becomes too warm slows down, which no other
// figure tells from a slow drive.
#pragma once

#include <optional>
#include <string>

namespace forebay {

struct DriveHeat {
  double celsius = 0;
  std::optional<double> limit_celsius;  // from which on the drive may slow down, as it says itself
  bool alarm = false;                   // it says itself that it is too warm, at any temperature
  bool is_at_limit() const { return limit_celsius.has_value() && celsius >= *limit_celsius; }
  bool too_warm() const { return alarm || is_at_limit(); }
  bool operator==(const DriveHeat&) const = default;
};

// `device_folder`: of a disk or a partition in /sys/devices. Nothing where it has no sensor that
// the kernel reads (NVMe drives have; of SATA ones with the module drivetemp).
std::optional<DriveHeat> HeatOf(const std::string& device_folder);

// "is at 84 degrees C and slows down from 80 on". Requires: too_warm().
std::string TooWarmText(const DriveHeat& heat);
// "", or what too much of it means for what was measured.
std::string HeatWarning(const DriveHeat& heat, const std::string& device);

}  // namespace forebay
