// What a measurement depends on beside the disk: kernel, CPU, limits, and how the disk hangs on the
// machine. Read from /proc and /sys; what is not there is left empty. `root` stands for "/" in
// tests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/host/drive_heat.h"

namespace forebay {

struct HostInfo {
  std::string name;
  std::string kernel;  // "6.18.44"
  std::string cpu;
  int num_cores = 0;
  int64_t memory_bytes = 0;
  std::string transparent_huge_pages;  // "madvise"
  int64_t memlock_bytes = -1;          // RLIMIT_MEMLOCK; -1: nothing limits this process
  std::string io_uring_disabled;       // kernel.io_uring_disabled; "": no such setting
  bool operator==(const HostInfo&) const = default;
};
HostInfo AskHost(const std::string& root = "");

struct DirectInfo {
  bool verified = false;  // real transfers with O_DIRECT were read back right
  std::string why_not;
  int mem_align = 0;  // what the kernel says it needs (STATX_DIOALIGN); 0: it does not say
  int off_align = 0;
  bool operator==(const DirectInfo&) const = default;
};

struct PcieLink {
  std::string speed;  // "8.0 GT/s PCIe"; "": no PCIe device
  int width = 0;
  std::string max_speed;
  int max_width = 0;
  // The device could go faster than its slot lets it.
  bool degraded() const { return speed != max_speed || width != max_width; }
  bool operator==(const PcieLink&) const = default;
};
// The link of the nearest folder above a device's that hangs on PCI Express.
PcieLink LinkOf(const std::string& device_folder);

// The file system of a folder, and the disk below it.
struct StorageInfo {
  std::string path;
  std::string fs;  // "ext4"
  std::string mount_options;
  std::string device;  // "nvme0n1p1"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::map<std::string, std::string> queue;  // some of /sys/block/*/queue; empty: no block device
  PcieLink pcie;
  int numa_node = -1;
  DirectInfo direct;
  std::string device_folder;                 // in /sys; "": no block device
  std::optional<DriveHeat> heat;             // when this was asked for
  std::optional<DriveHeat> heat_afterwards;  // when all was measured
  // Its files are kept in RAM.
  bool in_memory() const { return fs == "tmpfs" || fs == "ramfs" || fs == "devtmpfs"; }
  bool operator==(const StorageInfo&) const = default;
};
// `option` is one word of the mount's, such as "discard".
bool HasMountOption(const StorageInfo& storage, std::string_view option);
// The longest request that the disk takes; the kernel splits what is longer. 0: not known.
int64_t LongestRequestBytes(const StorageInfo& storage);
// `directory` must exist. All but direct.verified, which takes an engine. StorageError.
absl::StatusOr<StorageInfo> AskStorage(const std::string& directory, const std::string& root = "");

// ---- For tests

struct MountEntry {
  std::string device_number;  // "254:0"
  std::string mount_point;
  std::string fs;
  std::string options;
};
// /proc/self/mountinfo; lines that are not understood are left out.
std::vector<MountEntry> ParseMountInfo(const std::string& text);
// "madvise" of "always [madvise] never".
std::string ChosenWord(const std::string& text);

}  // namespace forebay
