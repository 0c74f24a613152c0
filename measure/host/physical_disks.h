// The drives that a block device lies on.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace forebay {

// The folders in /sys/devices of the disks below a device's: of a partition its disk, of LVM, LUKS
// and RAID those of all their parts, each once. Of a disk itself it is that one alone. Empty where
// `device_folder` is "".
std::vector<std::string> PhysicalDisks(const std::string& device_folder);

// The folder of a block device in /sys/devices (below `root`); "" where it has none, as those of
// file systems in RAM and of some that have several.
std::string BlockDeviceFolder(dev_t device, const std::string& root = "");
// The disks below all of these folders, each once.
std::vector<std::string> PhysicalDisksOf(const std::vector<std::string>& folders);

}  // namespace forebay
