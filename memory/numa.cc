#include "forebay/memory/numa.h"

#include <linux/mempolicy.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxNodes = 1024;
constexpr int kMaxStacked = 8;  // device-mapper on RAID on partitions: deeper is a loop

std::optional<int> ReadNode(const fs::path& file) {
  if (!FileExists(file.string())) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadWholeFile(file.string(), 1 << 16);
  if (!text.ok()) return std::nullopt;
  int node = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), node);
  return error == std::errc() ? std::optional(node) : std::nullopt;
}

int NodeOfFolder(const fs::path& folder, const fs::path& top, int depth);

// Of what a RAID or device-mapper device is made of. nullopt: it is made of nothing; -1: its parts
// do not agree.
std::optional<int> NodeOfParts(const fs::path& folder, const fs::path& top, int depth) {
  std::error_code error;
  std::optional<int> found;
  for (fs::directory_iterator part(folder / "slaves", error), end; !error && part != end;
       part.increment(error)) {
    const fs::path target = fs::canonical(part->path(), error);
    if (error || depth >= kMaxStacked) return -1;
    const int node = NodeOfFolder(target, top, depth + 1);
    if (found.has_value() && *found != node) return -1;
    found = node;
  }
  return found;
}

// Of a device folder in sysfs. Only hardware has a node, so look at each parent (a partition lies
// in its disk, a disk in its controller).
int NodeOfFolder(const fs::path& folder, const fs::path& top, int depth) {
  for (fs::path at = folder; at != top && at != at.parent_path(); at = at.parent_path()) {
    std::optional<int> node = ReadNode(at / "numa_node");
    if (!node.has_value()) node = NodeOfParts(at, top, depth);
    if (node.has_value()) return *node < 0 ? -1 : *node;
  }
  return -1;
}

}  // namespace

int NumaNodeOfDevice(unsigned major, unsigned minor, const std::string& sysfs) {
  std::error_code error;
  const fs::path top = fs::canonical(sysfs, error);
  if (error) return -1;
  const fs::path folder =
      fs::canonical(top / "dev" / "block" / fmt::format("{}:{}", major, minor), error);
  return error ? -1 : NodeOfFolder(folder, top, 0);
}

int NumaNodeOfPath(const std::string& path, const std::string& sysfs) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return -1;
  return NumaNodeOfDevice(major(info.st_dev), minor(info.st_dev), sysfs);
}

std::string PreferNumaNode(std::span<std::byte> memory, int node) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[kMaxNodes / kBits] = {};
  int failure = EINVAL;
  if (node >= 0 && node < kMaxNodes) {
    mask[node / kBits] = 1ul << (node % kBits);
    // The call itself: libnuma would be a dependency for one line. The kernel reads one bit less
    // than it is told.
    const long result = ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, mask,
                                  static_cast<unsigned long>(kMaxNodes) + 1, 0u);
    if (result == 0) return "";
    failure = errno;
  }
  return fmt::format(
      "memory is not placed on NUMA node {} as wanted: {}; it works, maybe farther from the disk",
      node, ErrnoText(failure));
}

}  // namespace forebay
