#include "forebay/measure/host/drive_heat.h"

#include <charconv>
#include <filesystem>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

namespace fs = std::filesystem;

// The disk of a partition, the controller of a disk, and the device that this is.
constexpr int kLevels = 4;
constexpr int64_t kMaxValueBytes = 4096;

std::optional<int64_t> NumberAt(const fs::path& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path.string(), kMaxValueBytes);
  int64_t number = 0;
  if (!text.ok() ||
      std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

std::optional<double> DegreesAt(const fs::path& path) {
  const std::optional<int64_t> thousandths = NumberAt(path);
  if (!thousandths.has_value()) return std::nullopt;
  return static_cast<double>(*thousandths) / 1000;
}

// A sensor's folder is its device's own, or one in "hwmon" there.
std::vector<fs::path> SensorsOf(const fs::path& device) {
  std::vector<fs::path> sensors;
  for (const fs::path& folder : {device, device / "hwmon"}) {
    for (const std::string& name :
         ListFolder(folder.string()).value_or(std::vector<std::string>())) {
      if (name.starts_with("hwmon") && name != "hwmon") sensors.push_back(folder / name);
    }
  }
  return sensors;
}

}  // namespace

std::optional<DriveHeat> HeatOf(const std::string& device_folder) {
  fs::path at = device_folder;
  for (int level = 0; level < kLevels && at.has_relative_path(); ++level, at = at.parent_path()) {
    for (const fs::path& sensor : SensorsOf(at)) {
      const std::optional<double> celsius = DegreesAt(sensor / "temp1_input");
      if (!celsius.has_value()) continue;
      // Some say the temperature alone that is dangerous to them.
      const std::optional<double> limit = DegreesAt(sensor / "temp1_max");
      return DriveHeat{
          .celsius = *celsius,
          .limit_celsius = limit.has_value() ? limit : DegreesAt(sensor / "temp1_crit"),
          .alarm = NumberAt(sensor / "temp1_alarm").value_or(0) != 0};
    }
  }
  return std::nullopt;
}

std::string TooWarmText(const DriveHeat& heat) {
  return fmt::format("is at {:.0f} degrees C and {}", heat.celsius,
                     heat.is_at_limit()
                         ? fmt::format("slows down from {:.0f} on", *heat.limit_celsius)
                         : "says itself that this is too warm, so that it may slow down");
}

std::string HeatWarning(const DriveHeat& heat, const std::string& device) {
  if (!heat.too_warm()) return "";
  return fmt::format(
      "{} {}: these may be the figures of a hot drive. Let it cool, give it air or a heat sink, "
      "and measure again",
      device, TooWarmText(heat));
}

}  // namespace forebay
