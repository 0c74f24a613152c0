#include "forebay/base/file_system.h"

#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <utility>

namespace forebay {
namespace {

// linux/magic.h, and those that stand in their file systems' own sources.
constexpr std::array<std::pair<uint32_t, const char*>, 16> kMagics = {{
    {0xEF53, "ext4"},
    {0x58465342, "xfs"},
    {0x9123683E, "btrfs"},
    {0x2FC12FC1, "zfs"},
    {0xCA451A4E, "bcachefs"},
    {0x01021994, "tmpfs"},
    {0x858458F6, "ramfs"},
    {0x794C7630, "overlay"},
    {0x65735546, "fuse"},
    {0x6969, "nfs"},
    {0x517B, "smbfs"},
    {0xFE534D42, "smb3"},
    {0xFF534D42, "cifs"},
    {0x01021997, "9p"},
    {0x00C36400, "ceph"},
    {0x0BD00BD0, "lustre"},
}};

}  // namespace

std::string FileSystemOfMagic(int64_t magic) {
  // The kernel's type is signed on some machines.
  const auto found = std::ranges::find(kMagics, static_cast<uint32_t>(magic),
                                       &decltype(kMagics)::value_type::first);
  return found == kMagics.end() ? "" : found->second;
}

std::string FileSystemOf(int fd) {
  struct statfs info = {};
  return ::fstatfs(fd, &info) == 0 ? FileSystemOfMagic(info.f_type) : "";
}

std::string FileSystemAt(const std::string& path) {
  struct statfs info = {};
  return ::statfs(path.c_str(), &info) == 0 ? FileSystemOfMagic(info.f_type) : "";
}

}  // namespace forebay
