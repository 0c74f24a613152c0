#include "forebay/train/disk_profile.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

std::string NotUsed(const std::string& bench, const std::string& folder, const std::string& why) {
  return fmt::format(
      "--bench '{}' is not used for '{}': {}. Measure again with 'swap-bench tune {} --out={}'",
      bench, folder, why, folder, bench);
}

}  // namespace

std::string SwapFolderOf(const TrainOptions& options) {
  if (!options.nvme.empty()) return options.nvme;
  return options.out.empty() ? "." : options.out;
}

absl::StatusOr<DiskProfile> ReadDiskProfile(const std::string& bench, const std::string& folder) {
  DiskProfile result;
  if (bench.empty()) return result;
  FOREBAY_ASSIGN_OR_RETURN(const IoProfile profile, ReadIoProfile(bench));
  FOREBAY_ASSIGN_OR_RETURN(const DeviceKey key, AskDeviceKey(folder));
  std::string why_not;
  const DeviceProfile* const device = FindProfile(profile, key, why_not);
  if (device != nullptr) {
    result.device = *device;
  } else {
    result.warning = NotUsed(bench, folder, why_not);
  }
  return result;
}

void AddRates(const DiskProfile& profile, MachineLimits& limits) {
  if (!profile.device.has_value()) return;
  limits.read_bytes_per_s = profile.device->read_bytes_per_s;
  limits.write_bytes_per_s = profile.device->write_bytes_per_s;
}

absl::StatusOr<OpenedEngine> OpenProfiledEngine(const EngineOptions& options,
                                                const std::string& folder,
                                                const EngineOpener& open_engine,
                                                DiskProfile& profile) {
  if (!profile.device.has_value()) return open_engine(options, folder);
  FOREBAY_ASSIGN_OR_RETURN(OpenedEngine opened,
                           open_engine(WithProfile(options, *profile.device), folder));
  if (opened.kind == profile.device->engine) {
    opened.line += "; transfers cut and queued as --bench says";
    return opened;
  }
  profile.warning = fmt::format(
      "--bench is not used for '{}': it was measured with the engine {}, and this run has {}",
      folder, NameOf(profile.device->engine), NameOf(opened.kind));
  profile.device.reset();
  return open_engine(options, folder);
}

}  // namespace forebay
