#include "forebay/train/plan/stripe_weights.h"

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// For the bf16 layout with everything on NVMe (docs/design/numbers.md).
constexpr double kReadShare = 14;
constexpr double kWriteShare = 12;

}  // namespace

double StepBytesPerSecond(const DiskSpeed& speed) {
  return (kReadShare + kWriteShare) /
         (kReadShare / speed.read_bytes_per_s + kWriteShare / speed.write_bytes_per_s);
}

StripeWeights WeightsOf(const std::vector<double>& bytes_per_s, const MachineLimits& limits) {
  std::vector<uint64_t> file_systems;
  for (const DiskLimits& disk : limits.disks) file_systems.push_back(disk.file_system);
  return WeightsOfSpeeds(bytes_per_s, file_systems);
}

StripeShares KnownShares(const TrainOptions& options, const DiskProfile& profile,
                         const MachineLimits& limits) {
  const size_t num_folders = limits.disks.size();
  if (!options.nvme_weights.empty()) {
    return {WeightsInProportion(options.nvme_weights), "--set=nvme_weights", /*is_fixed=*/true};
  }
  if (num_folders == 1) return {{1}, ""};
  if (profile.devices.size() == num_folders) {
    std::vector<double> speeds;
    for (const DeviceProfile& device : profile.devices) speeds.push_back(device.weight);
    return {WeightsOf(speeds, limits), "--bench"};
  }
  return {StripeWeights(num_folders, 1), ""};
}

void SetWeights(const StripeShares& shares, MachineLimits& limits) {
  FOREBAY_CHECK(shares.weights.size() == limits.disks.size());
  for (size_t i = 0; i < limits.disks.size(); ++i) limits.disks[i].weight = shares.weights[i];
  limits.shares_are_fixed = shares.is_fixed;
}

absl::StatusOr<StripeShares> MeasuredShares(Engine& engine, const MachineLimits& limits,
                                            const std::function<bool()>& stop) {
  StripeShares shares = {StripeWeights(limits.disks.size(), 1), "not measured: too little is free"};
  std::vector<double> speeds(limits.disks.size());
  const FoldersOfDisks disks = ByFileSystem(limits.disks);
  if (disks.size() == 1) {
    shares.origin = "not measured: they are on one file system";
    return shares;
  }
  for (const DiskLimits& disk : limits.disks) {
    if (disk.free_bytes >= 0 && disk.free_bytes < 2 * kSpeedProbeBytes) return shares;
  }
  for (const auto& [file_system, folders] : disks) {
    const std::string& folder = limits.disks[folders.front()].folder;
    FOREBAY_ASSIGN_OR_RETURN(const DiskSpeed speed, ProbeSpeed(engine, folder, stop));
    for (const size_t i : folders) speeds[i] = StepBytesPerSecond(speed);
  }
  shares.weights = WeightsOf(speeds, limits);
  shares.origin = "measured:";
  for (size_t i = 0; i < speeds.size(); ++i) {
    shares.origin += fmt::format("{} {:.2f}", i == 0 ? "" : " and", speeds[i] / 1e9);
  }
  shares.origin += " GB/s";
  return shares;
}

std::string SharesText(const std::vector<std::string>& folders, const StripeWeights& weights,
                       const std::string& origin) {
  const auto total = static_cast<double>(Total(weights));
  std::string text;
  for (size_t i = 0; i < folders.size(); ++i) {
    text += fmt::format("{}'{}' {:.0f} %", i == 0 ? "" : ", ", folders[i],
                        100 * static_cast<double>(weights[i]) / total);
  }
  return origin.empty() ? text : fmt::format("{} ({})", text, origin);
}

}  // namespace forebay
