#include "forebay/memory/available_memory.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "forebay/base/file.h"
#include "forebay/base/numbers_in_text.h"
#include "forebay/memory/page_tally.h"

namespace forebay {
namespace {

constexpr int64_t kMaxProcFileBytes = 1 << 20;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string ReadOrEmpty(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxProcFileBytes);
  return text.ok() ? *text : std::string();
}

// What a group may use of something, and has in use.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* statistics = nullptr;  // whose "inactive_file" can be dropped
};
// Something that groups limit, in both versions.
struct CgroupResource {
  const char* controller;
  CgroupFiles version2;
  CgroupFiles version1;
};
constexpr CgroupResource kMemory = {
    "memory",
    {"memory.max", "memory.current", "memory.stat"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"}};
constexpr CgroupResource kHugePages = {
    "hugetlb",
    {"hugetlb.2MB.max", "hugetlb.2MB.current"},
    {"hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes"}};

// Room left in the group in `directory`, not counting its parents.
int64_t RoomInGroup(const std::string& directory, const CgroupFiles& files) {
  const std::optional<int64_t> limit = LeadingNumber(ReadOrEmpty(JoinPath(directory, files.limit)));
  if (!limit.has_value() || *limit >= kNoLimit / 2) return kNoLimit;
  const int64_t usage = LeadingNumber(ReadOrEmpty(JoinPath(directory, files.usage))).value_or(0);
  int64_t droppable = 0;
  if (files.statistics != nullptr) {
    const std::string statistics = ReadOrEmpty(JoinPath(directory, files.statistics));
    droppable = NumberOf(statistics, "inactive_file").value_or(0);
  }
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, usage - droppable));
}

// The least room of the group `path` and its parents up to the mount point. In a container the
// paths of /proc may name folders that only exist outside; the mount point is then the process's
// own group.
int64_t RoomUpToRoot(const std::string& mount, std::string path, const CgroupFiles& files) {
  int64_t room = RoomInGroup(mount, files);
  while (path.size() > 1) {
    room = std::min(room, RoomInGroup(mount + path, files));
    path.resize(path.rfind('/'));
  }
  return room;
}

int64_t RoomInCgroups(const CgroupResource& resource, const std::string& root) {
  const std::string groups = ReadOrEmpty(root + "/proc/self/cgroup");
  int64_t room = kNoLimit;
  std::string_view rest = groups;
  while (!rest.empty()) {
    // "hierarchy:controllers:path"; version 2 is "0::path".
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) {
      room = std::min(room, RoomUpToRoot(root + "/sys/fs/cgroup", path, resource.version2));
    } else if (controllers.find(resource.controller) != std::string_view::npos) {
      const std::string mount = root + "/sys/fs/cgroup/" + resource.controller;
      room = std::min(room, RoomUpToRoot(mount, path, resource.version1));
    }
  }
  return room;
}

int64_t MemAvailableBytes(const std::string& root) {
  const std::string text = ReadOrEmpty(root + "/proc/meminfo");
  return NumberOf(text, "MemAvailable:").value_or(kNoLimit >> 11) << 10;
}

}  // namespace

int64_t OrdinaryMemoryBytes(const std::string& root) {
  return std::min(MemAvailableBytes(root), RoomInCgroups(kMemory, root));
}

int64_t AvailableMemoryBytes(const std::string& root) {
  const int64_t reserved_bytes = FreeReservedHugeBytes(root);
  // With this option of the mount, groups count huge pages as memory too.
  const bool counted =
      ReadOrEmpty(root + "/proc/mounts").find("memory_hugetlb_accounting") != std::string::npos;
  if (!counted) return OrdinaryMemoryBytes(root) + reserved_bytes;
  return std::min(RoomInCgroups(kMemory, root), MemAvailableBytes(root) + reserved_bytes);
}

int64_t FreeReservedHugeBytes(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const auto count = [&folder](const char* name) {
    return LeadingNumber(ReadOrEmpty(folder + name)).value_or(0);
  };
  const int64_t num_free = std::max<int64_t>(0, count("free_hugepages") - count("resv_hugepages"));
  return std::min(num_free * kHugePageBytes, RoomInCgroups(kHugePages, root));
}

}  // namespace forebay
