// What the kernel tells about the device under a file.
#pragma once

#include <sys/types.h>

#include <string>

namespace forebay {

// "nvme0n1", "md0"; "device 0:38" where no block device stands behind it (overlay, NFS, tmpfs).
std::string DeviceName(dev_t device);
// The name of the device that the file at `path` is on; "unknown" where there is no file.
std::string DeviceNameOf(const std::string& path);

}  // namespace forebay
