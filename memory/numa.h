// Which NUMA node a disk hangs on, and memory near it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace forebay {

// The node of the device that holds `path`. -1 where there is none or nobody knows, which is
// normal: one node, a virtual disk, tmpfs, several disks on different nodes. `sysfs` is for tests.
int NumaNodeOfPath(const std::string& path, const std::string& sysfs = "/sys");
// The same for the block device with these numbers.
int NumaNodeOfDevice(unsigned major, unsigned minor, const std::string& sysfs = "/sys");

// Pages of `memory` that are touched from now on come from `node` while it has any, else from
// elsewhere. "" when the kernel agreed; else what it said. Requires: page-aligned memory.
std::string PreferNumaNode(std::span<std::byte> memory, int node);

}  // namespace forebay
