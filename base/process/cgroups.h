// The control groups of this process: what containers and service managers limit.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace forebay {

struct CgroupFolder {
  std::string path;
  int version = 2;  // or 1
};

// The folders of the process's group for a controller ("memory", "cpu") and of all groups around
// it, in both versions; a controller's files may be missing there. In a container the paths of
// /proc may name folders that only exist outside; the mount point is then the process's own group,
// and is always among the folders. `root` stands for "/" in tests.
std::vector<CgroupFolder> CgroupFolders(std::string_view controller, const std::string& root = "");

// How many CPUs' time the groups let the process have (cpu.max; cpu.cfs_quota_us), such as 1.5.
// nullopt: no limit.
std::optional<double> CpuQuota(const std::string& root = "");

}  // namespace forebay
