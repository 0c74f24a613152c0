#include "forebay/train/run/drive_watch.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "forebay/measure/host/drive_heat.h"

namespace forebay {
namespace {

// A drive at its limit goes up and down a little: it is cool again from here on.
constexpr double kCoolerCelsius = 3;

std::string TooWarm(const std::string& name, const DriveHeat& heat) {
  return fmt::format("warning: {} {}: steps take longer while it does. Give it air or a heat sink",
                     name, TooWarmText(heat));
}

bool IsCoolAgain(const DriveHeat& heat) {
  if (heat.alarm) return false;
  return !heat.limit_celsius.has_value() || heat.celsius <= *heat.limit_celsius - kCoolerCelsius;
}

std::string CoolAgain(const std::string& name, const DriveHeat& heat) {
  return fmt::format(
      "{} is at {:.0f} degrees C again{}", name, heat.celsius,
      heat.limit_celsius.has_value()
          ? fmt::format(", below the {:.0f} from which on it slows down", *heat.limit_celsius)
          : ", and no longer says that this is too warm");
}

}  // namespace

DriveWatch::DriveWatch(std::vector<std::string> disks, double look_every_s)
    : look_every_s_(look_every_s) {
  for (std::string& disk : disks) {
    if (HeatOf(disk).has_value()) drives_.push_back({std::move(disk)});
  }
}

void DriveWatch::AfterStep(const std::function<void(const std::string& line)>& note) {
  if (drives_.empty() || (has_looked_ && since_look_.Seconds() < look_every_s_)) return;
  has_looked_ = true;
  since_look_.Restart();
  for (Drive& drive : drives_) {
    const std::optional<DriveHeat> heat = HeatOf(drive.folder);
    if (!heat.has_value()) continue;
    const std::string name = std::filesystem::path(drive.folder).filename().string();
    if (!drive.is_too_warm && heat->too_warm()) {
      drive.is_too_warm = true;
      note(TooWarm(name, *heat));
    } else if (drive.is_too_warm && IsCoolAgain(*heat)) {
      drive.is_too_warm = false;
      note(CoolAgain(name, *heat));
    }
  }
}

}  // namespace forebay
