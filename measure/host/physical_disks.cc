#include "forebay/measure/host/physical_disks.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

namespace fs = std::filesystem;

// RAID on LUKS on LVM on a partition, and some more; also where links go round in a circle.
constexpr int kMostLevels = 8;

void AddDisks(const fs::path& device, int level, std::vector<std::string>& disks) {
  if (level == kMostLevels) return;
  std::error_code error;
  const std::string slaves = (device / "slaves").string();
  const auto parts = ListFolder(slaves).value_or(std::vector<std::string>());
  for (const std::string& part : parts) {
    const fs::path folder = fs::canonical(JoinPath(slaves, part), error);
    if (!error) AddDisks(folder, level + 1, disks);
  }
  if (!parts.empty()) return;
  // A disk has a queue; a partition lies in the folder of its disk.
  if (!fs::exists(device / "queue", error) && fs::exists(device / "partition", error)) {
    return AddDisks(device.parent_path(), level + 1, disks);
  }
  if (std::ranges::find(disks, device.string()) == disks.end()) disks.push_back(device.string());
}

}  // namespace

std::vector<std::string> PhysicalDisks(const std::string& device_folder) {
  std::vector<std::string> disks;
  if (!device_folder.empty()) AddDisks(device_folder, 0, disks);
  return disks;
}

std::string BlockDeviceFolder(dev_t device, const std::string& root) {
  std::error_code error;
  const fs::path folder = fs::canonical(
      fmt::format("{}/sys/dev/block/{}:{}", root, ::major(device), ::minor(device)), error);
  return error ? "" : folder.string();
}

std::vector<std::string> PhysicalDisksOf(const std::vector<std::string>& folders) {
  std::vector<std::string> disks;
  for (const std::string& folder : folders) {
    struct stat info = {};
    if (::stat(folder.c_str(), &info) != 0) continue;
    for (const std::string& disk : PhysicalDisks(BlockDeviceFolder(info.st_dev))) {
      if (std::ranges::find(disks, disk) == disks.end()) disks.push_back(disk);
    }
  }
  return disks;
}

}  // namespace forebay
