#include "forebay/memory/available_memory.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr int64_t kMaxProcFileBytes = 1 << 20;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string ReadOrEmpty(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxProcFileBytes);
  return text.ok() ? *text : std::string();
}

// The number that begins at `text`; nullopt for "max" and other words.
std::optional<int64_t> LeadingNumber(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() && end != text.data() + begin ? std::optional(value) : std::nullopt;
}

// The number behind `key` at the beginning of a line ("MemAvailable:", "inactive_file").
std::optional<int64_t> NumberOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return LeadingNumber(line.substr(key.size()));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.current"};
constexpr CgroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes"};

// Room left in the group in `directory`, not counting its parents.
int64_t RoomInGroup(const std::string& directory, const CgroupFiles& files) {
  const std::optional<int64_t> limit = LeadingNumber(ReadOrEmpty(JoinPath(directory, files.limit)));
  if (!limit.has_value() || *limit >= kNoLimit / 2) return kNoLimit;
  const int64_t usage = LeadingNumber(ReadOrEmpty(JoinPath(directory, files.usage))).value_or(0);
  const int64_t droppable =
      NumberOf(ReadOrEmpty(JoinPath(directory, "memory.stat")), "inactive_file").value_or(0);
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

int64_t RoomInCgroups(const std::string& root) {
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
      room = std::min(room, RoomUpToRoot(root + "/sys/fs/cgroup", path, kVersion2));
    } else if (controllers.find("memory") != std::string_view::npos) {
      room = std::min(room, RoomUpToRoot(root + "/sys/fs/cgroup/memory", path, kVersion1));
    }
  }
  return room;
}

}  // namespace

int64_t AvailableMemoryBytes(const std::string& root) {
  const int64_t kib =
      NumberOf(ReadOrEmpty(root + "/proc/meminfo"), "MemAvailable:").value_or(kNoLimit >> 10);
  return std::min(kib << 10, RoomInCgroups(root));
}

}  // namespace forebay
