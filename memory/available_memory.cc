#include "forebay/memory/available_memory.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "forebay/base/file.h"
#include "forebay/base/numbers_in_text.h"
#include "forebay/base/process/cgroups.h"
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

// The least room of the process's groups.
int64_t RoomInCgroups(const CgroupResource& resource, const std::string& root) {
  int64_t room = kNoLimit;
  for (const CgroupFolder& folder : CgroupFolders(resource.controller, root)) {
    room = std::min(room, RoomInGroup(folder.path,
                                      folder.version == 2 ? resource.version2 : resource.version1));
  }
  return room;
}

int64_t MemAvailableBytes(const std::string& root) {
  const std::string text = ReadOrEmpty(root + "/proc/meminfo");
  return NumberOf(text, "MemAvailable:").value_or(kNoLimit >> 11) << 10;
}

}  // namespace

std::optional<int64_t> CgroupRoomBytes(const std::string& root) {
  const int64_t room = RoomInCgroups(kMemory, root);
  return room == kNoLimit ? std::nullopt : std::optional(room);
}

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
