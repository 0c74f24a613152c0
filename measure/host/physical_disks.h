// The drives that a block device lies on.
#pragma once

#include <string>
#include <vector>

namespace forebay {

// The folders in /sys/devices of the disks below a device's: of a partition its disk, of LVM, LUKS
// and RAID those of all their parts, each once. Of a disk itself it is that one alone. Empty where
// `device_folder` is "".
std::vector<std::string> PhysicalDisks(const std::string& device_folder);

}  // namespace forebay
