#include "forebay/base/process/cgroups.h"

#include <algorithm>
#include <cstdint>

#include "fmt/format.h"
#include "forebay/base/file.h"
#include "forebay/base/numbers_in_text.h"

namespace forebay {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

std::string TextOf(const std::string& path) {
  return ReadWholeFile(path, kMaxFileBytes).value_or("");
}

// The mount point, then `group` and those around it up to there.
void AddFolders(const std::string& mount, std::string group, int version,
                std::vector<CgroupFolder>& folders) {
  folders.push_back({mount, version});
  while (group.size() > 1) {
    folders.push_back({mount + group, version});
    group.resize(group.rfind('/'));
  }
}

// The quota of one group.
std::optional<double> QuotaIn(const CgroupFolder& folder) {
  std::optional<int64_t> quota_us, period_us;
  if (folder.version == 2) {
    const std::string text = TextOf(JoinPath(folder.path, "cpu.max"));  // "max 100000"
    quota_us = LeadingNumber(text);
    if (const size_t blank = text.find(' '); blank != std::string::npos) {
      period_us = LeadingNumber(std::string_view(text).substr(blank));
    }
  } else {
    quota_us = LeadingNumber(TextOf(JoinPath(folder.path, "cpu.cfs_quota_us")));  // -1: no limit
    period_us = LeadingNumber(TextOf(JoinPath(folder.path, "cpu.cfs_period_us")));
  }
  if (quota_us.value_or(0) <= 0 || period_us.value_or(0) <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

}  // namespace

std::vector<CgroupFolder> CgroupFolders(std::string_view controller, const std::string& root) {
  const std::string groups = TextOf(root + "/proc/self/cgroup");
  std::vector<CgroupFolder> folders;
  std::string_view rest = groups;
  while (!rest.empty()) {
    // "hierarchy:controllers:path"; version 2 is "0::path".
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path(line.substr(second + 1));
    if (controllers == ",,") {
      AddFolders(root + "/sys/fs/cgroup", path, 2, folders);
    } else if (controllers.find(fmt::format(",{},", controller)) != std::string::npos) {
      AddFolders(fmt::format("{}/sys/fs/cgroup/{}", root, controller), path, 1, folders);
    }
  }
  return folders;
}

std::optional<double> CpuQuota(const std::string& root) {
  std::optional<double> least;
  for (const CgroupFolder& folder : CgroupFolders("cpu", root)) {
    const std::optional<double> quota = QuotaIn(folder);
    if (quota.has_value()) least = std::min(least.value_or(*quota), *quota);
  }
  return least;
}

}  // namespace forebay
