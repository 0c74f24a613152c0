#include "forebay/train/plan/disk_profile.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

// The folders of a store may be still to be made: those above them are on the same disks.
std::string NotUsed(const std::string& bench, const std::string& folder, const std::string& why,
                    const std::vector<std::string>& folders) {
  std::string measured;
  for (const std::string& each : folders) {
    measured += fmt::format(" {}", ShellQuoted(NearestFolder(each)));
  }
  return fmt::format(
      "--bench '{}' is not used for '{}': {}. Measure again with 'swap-bench tune{} --out={}'",
      bench, folder, why, measured, ShellQuoted(bench));
}

// The engine has one set of settings for all disks: transfers as short, and as many bytes in flight
// and as long turns, as any of them wants.
DeviceProfile ForAllOf(const std::vector<DeviceProfile>& devices) {
  DeviceProfile all = devices.front();
  for (const DeviceProfile& device : devices) {
    all.block_bytes = std::min(all.block_bytes, device.block_bytes);
    all.inflight_read_bytes = std::max(all.inflight_read_bytes, device.inflight_read_bytes);
    all.inflight_write_bytes = std::max(all.inflight_write_bytes, device.inflight_write_bytes);
    all.burst_bytes = std::max(all.burst_bytes, device.burst_bytes);
  }
  return all;
}

}  // namespace

absl::StatusOr<DiskProfile> ReadDiskProfile(const std::string& bench,
                                            const std::vector<std::string>& folders) {
  DiskProfile result;
  if (bench.empty()) return result;
  FOREBAY_ASSIGN_OR_RETURN(const IoProfile profile, ReadIoProfile(bench));
  for (const std::string& folder : folders) {
    FOREBAY_ASSIGN_OR_RETURN(const DeviceKey key, AskDeviceKey(folder));
    std::string why_not;
    const DeviceProfile* const device = FindProfile(profile, key, why_not);
    if (device == nullptr) {
      result.warning = NotUsed(bench, folder, why_not, folders);
      result.devices.clear();
      break;
    }
    result.devices.push_back(*device);
  }
  return result;
}

void AddRates(const DiskProfile& profile, MachineLimits& limits) {
  if (profile.devices.size() != limits.disks.size()) return;
  for (size_t i = 0; i < profile.devices.size(); ++i) {
    limits.disks[i].read_bytes_per_s = profile.devices[i].read_bytes_per_s;
    limits.disks[i].write_bytes_per_s = profile.devices[i].write_bytes_per_s;
  }
}

absl::StatusOr<OpenedEngine> OpenProfiledEngine(const EngineOptions& options,
                                                const std::vector<std::string>& folders,
                                                const EngineOpener& open_engine,
                                                DiskProfile& profile) {
  if (profile.devices.empty()) return open_engine(options, folders);
  const DeviceProfile settings = ForAllOf(profile.devices);
  FOREBAY_ASSIGN_OR_RETURN(OpenedEngine opened,
                           open_engine(WithProfile(options, settings), folders));
  const auto other = std::ranges::find_if(
      profile.devices, [&](const DeviceProfile& device) { return device.engine != opened.kind; });
  if (other == profile.devices.end()) {
    opened.line += "; transfers cut and queued as --bench says";
    return opened;
  }
  profile.warning = fmt::format(
      "the engine settings of --bench are not used: those of '{}' were measured with the engine "
      "{}, "
      "and this run has {}. What it says of the disks' speed is",
      folders[static_cast<size_t>(other - profile.devices.begin())], NameOf(other->engine),
      NameOf(opened.kind));
  profile.devices.clear();
  return open_engine(options, folders);
}

}  // namespace forebay
