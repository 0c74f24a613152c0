#include "forebay/measure/host/host_info.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "fmt/format.h"
#include "forebay/aio/block_device.h"
#include "forebay/aio/engine_probe.h"
#include "forebay/aio/kernel_limits.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/file_system.h"
#include "forebay/base/numbers_in_text.h"
#include "forebay/measure/host/physical_disks.h"
#include "forebay/memory/numa.h"

namespace forebay {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxInfoBytes = int64_t{4} << 20;

std::string FirstLine(const fs::path& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path.string(), kMaxInfoBytes);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

// "AMD EPYC 9B14" of "model name : AMD EPYC 9B14".
std::string CpuModel(const std::string& root) {
  const absl::StatusOr<std::string> text = ReadWholeFile(root + "/proc/cpuinfo", kMaxInfoBytes);
  if (!text.ok()) return "";
  const size_t key = text->find("model name");
  const size_t colon = key == std::string::npos ? key : text->find(": ", key);
  if (colon == std::string::npos) return "";
  return text->substr(colon + 2, text->find('\n', colon) - colon - 2);
}

// The kernel writes blanks in paths as "\040".
std::string WithoutEscapes(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const bool escaped =
        text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ec == std::errc();
    plain += escaped ? static_cast<char>(code) : text[i];
    if (escaped) i += 3;
  }
  return plain;
}

// The kernel tells options of the mount and of its file system, and some of both.
std::string OptionsOnce(const std::string& options) {
  std::vector<std::string> kept;
  std::istringstream words(options);
  for (std::string word; std::getline(words, word, ',');) {
    if (std::ranges::find(kept, word) == kept.end()) kept.push_back(word);
  }
  return fmt::format("{}", fmt::join(kept, ","));
}

// Where `path` is mounted: of the mounts of its device, the longest that leads to it.
MountEntry MountOf(const std::string& path, dev_t device, const std::string& root) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(root + "/proc/self/mountinfo", kMaxInfoBytes);
  const std::string number = fmt::format("{}:{}", ::major(device), ::minor(device));
  MountEntry best;
  for (const MountEntry& mount : ParseMountInfo(text.value_or(""))) {
    const bool leads = path == mount.mount_point || mount.mount_point == "/" ||
                       path.starts_with(mount.mount_point + "/");
    // btrfs has another number in stat than in mountinfo, so the place counts first.
    const bool better = mount.mount_point.size() > best.mount_point.size() ||
                        (mount.mount_point.size() == best.mount_point.size() &&
                         (mount.device_number == number || best.device_number != number));
    if (leads && better) best = mount;
  }
  return best;
}

std::map<std::string, std::string> QueueOf(const fs::path& device) {
  // A partition's queue is that of its disk.
  std::error_code error;
  fs::path folder = device / "queue";
  if (!fs::exists(folder, error)) folder = device.parent_path() / "queue";
  std::map<std::string, std::string> queue;
  for (const char* key : {"write_cache", "fua", "max_sectors_kb", "max_segments", "nr_requests",
                          "scheduler", "rotational", "logical_block_size", "physical_block_size"}) {
    const std::string value = FirstLine(folder / key);
    if (!value.empty())
      queue[key] = std::string_view(key) == "scheduler" ? ChosenWord(value) : value;
  }
  return queue;
}

int WidthOf(const std::string& text) {
  int width = 0;
  std::from_chars(text.data(), text.data() + text.size(), width);
  return width;
}

DirectInfo DirectOf(const ScratchFile& scratch) {
  DirectInfo direct;
  direct.why_not = scratch.why_not_direct;
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (::statx(scratch.fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    direct.mem_align = static_cast<int>(info.stx_dio_mem_align);
    direct.off_align = static_cast<int>(info.stx_dio_offset_align);
  }
#endif
  return direct;
}

}  // namespace

std::string ChosenWord(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  return open == std::string::npos || close == std::string::npos
             ? text
             : text.substr(open + 1, close - open - 1);
}

std::vector<MountEntry> ParseMountInfo(const std::string& text) {
  // "36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
  std::vector<MountEntry> mounts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash));
    std::istringstream back(line.substr(dash + 3));
    std::string id, parent, root, point, options, source, super_options;
    MountEntry mount;
    if (!(front >> id >> parent >> mount.device_number >> root >> point >> options)) continue;
    if (!(back >> mount.fs >> source >> super_options)) continue;
    mount.mount_point = WithoutEscapes(point);
    mount.options = OptionsOnce(options + "," + super_options);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

PcieLink LinkOf(const std::string& device_folder) {
  PcieLink link;
  for (fs::path at = device_folder; at.has_parent_path() && at != at.parent_path();
       at = at.parent_path()) {
    link.speed = FirstLine(at / "current_link_speed");
    if (link.speed.empty()) continue;
    link.width = WidthOf(FirstLine(at / "current_link_width"));
    link.max_speed = FirstLine(at / "max_link_speed");
    link.max_width = WidthOf(FirstLine(at / "max_link_width"));
    return link;
  }
  return {};
}

HostInfo AskHost(const std::string& root) {
  HostInfo host;
  host.name = FirstLine(root + "/proc/sys/kernel/hostname");
  host.kernel = FirstLine(root + "/proc/sys/kernel/osrelease");
  host.cpu = CpuModel(root);
  host.num_cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string memory = ReadWholeFile(root + "/proc/meminfo", kMaxInfoBytes).value_or("");
  host.memory_bytes = NumberOf(memory, "MemTotal:").value_or(0) * 1024;
  host.transparent_huge_pages =
      ChosenWord(FirstLine(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  const MemlockLimit limit = MemlockLimit::Ask();
  if (limit.kib.has_value()) host.memlock_bytes = *limit.kib * 1024;
  host.io_uring_disabled = FirstLine(root + "/proc/sys/kernel/io_uring_disabled");
  return host;
}

bool HasMountOption(const StorageInfo& storage, std::string_view option) {
  return ("," + storage.mount_options + ",").find("," + std::string(option) + ",") !=
         std::string::npos;
}

int64_t LongestRequestBytes(const StorageInfo& storage) {
  const auto setting = storage.queue.find("max_sectors_kb");
  if (setting == storage.queue.end()) return 0;
  const std::string& text = setting->second;
  int64_t kib = 0;
  std::from_chars(text.data(), text.data() + text.size(), kib);
  return std::max<int64_t>(0, kib) * 1024;
}

absl::StatusOr<StorageInfo> AskStorage(const std::string& directory, const std::string& root) {
  struct stat info = {};
  struct statvfs space = {};
  if (::stat(directory.c_str(), &info) != 0 || ::statvfs(directory.c_str(), &space) != 0) {
    return StorageError(fmt::format("looking at '{}' failed", directory), errno);
  }
  StorageInfo storage;
  storage.path = directory;
  const auto unit = static_cast<int64_t>(space.f_frsize);
  storage.total_bytes = static_cast<int64_t>(space.f_blocks) * unit;
  storage.free_bytes = static_cast<int64_t>(space.f_bavail) * unit;
  std::error_code error;
  const fs::path real = fs::canonical(directory, error);
  const MountEntry mount = MountOf(error ? directory : real.string(), info.st_dev, root);
  storage.fs = mount.fs.empty() ? FileSystemAt(directory) : mount.fs;
  storage.mount_options = mount.options;
  storage.device_folder = BlockDeviceFolder(info.st_dev, root);
  const fs::path device = storage.device_folder;
  storage.device = device.empty() ? DeviceName(info.st_dev) : device.filename().string();
  if (!device.empty()) {
    storage.queue = QueueOf(device);
    storage.pcie = LinkOf(storage.device_folder);
    storage.heat = HeatOf(storage.device_folder);
  }
  storage.numa_node = NumaNodeOfPath(directory);
  FOREBAY_ASSIGN_OR_RETURN(const ScratchFile scratch, OpenScratchFile(directory, true));
  storage.direct = DirectOf(scratch);
  return storage;
}

}  // namespace forebay
