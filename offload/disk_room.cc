#include "forebay/offload/disk_room.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace forebay {
namespace {

// Shares that follow from free space are in parts of this, rounded down where the space ends.
constexpr double kParts = 10'000;

// While room is shared out. In parts of the whole, but for the weight.
struct Disk {
  double weight = 0;  // of its folders
  double most = 1;
  double share = 0;
  bool is_full = false;
};

// By weight among those that are not full, until no other one is. Requires: together they may have
// all of it.
void ShareOut(std::map<uint64_t, Disk>& disks) {
  for (bool changed = true; changed;) {
    changed = false;
    double left = 1;
    double weight = 0;
    for (const auto& [file_system, disk] : disks) {
      left -= disk.is_full ? disk.share : 0;
      weight += disk.is_full ? 0 : disk.weight;
    }
    for (auto& [file_system, disk] : disks) {
      if (disk.is_full) continue;
      disk.share = left * disk.weight / weight;
      if (disk.share <= disk.most) continue;
      disk.share = disk.most;
      disk.is_full = changed = true;
    }
  }
}

}  // namespace

StripeWeights WithinRoom(const MachineLimits& limits, const SpaceNeeds& needs) {
  const auto total = static_cast<double>(needs.total_bytes);
  std::map<uint64_t, Disk> disks;  // by file system
  for (const auto& [file_system, folders] : ByFileSystem(limits.disks)) {
    Disk& disk = disks[file_system];
    for (const size_t i : folders) disk.weight += static_cast<double>(limits.disks[i].weight);
    const int64_t free_bytes = limits.disks[folders.front()].free_bytes;
    if (free_bytes < 0) continue;
    const int64_t kept_bytes =
        static_cast<int64_t>(folders.size()) * needs.slack_bytes +
        (file_system == limits.out_file_system ? needs.beside_exports_bytes : 0);
    disk.most = std::max(0.0, static_cast<double>(free_bytes - kept_bytes) / total);
  }
  double room = 0;
  for (const auto& [file_system, disk] : disks) room += disk.most;
  if (room < 1) return {};
  ShareOut(disks);
  std::vector<double> parts;
  for (const DiskLimits& folder : limits.disks) {
    const Disk& disk = disks[folder.file_system];
    const double part = kParts * disk.share * static_cast<double>(folder.weight) / disk.weight;
    parts.push_back(std::max(1.0, disk.is_full ? std::floor(part) : std::ceil(part)));
  }
  return WeightsInProportion(parts);
}

}  // namespace forebay
