#include "forebay/measure/file_system.h"

#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace forebay {
namespace {

// linux/magic.h, and those that stand in their file systems' own sources.
constexpr std::array<std::pair<uint32_t, const char*>, 15> kMagics = {{
    {0xEF53, "ext4"},
    {0x58465342, "xfs"},
    {0x9123683E, "btrfs"},
    {0x2FC12FC1, "zfs"},
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

bool IsOneOf(std::string_view fs, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, fs) != names.end();
}

}  // namespace

std::string FileSystemOfMagic(int64_t magic) {
  // The kernel's type is signed on some machines.
  const auto found = std::ranges::find(kMagics, static_cast<uint32_t>(magic),
                                       &decltype(kMagics)::value_type::first);
  return found == kMagics.end() ? "" : found->second;
}

std::string FileSystemAt(const std::string& directory) {
  struct statfs info = {};
  return ::statfs(directory.c_str(), &info) == 0 ? FileSystemOfMagic(info.f_type) : "";
}

std::string WhatStandsBetween(const std::string& fs) {
  if (IsOneOf(fs, {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "afs", "glusterfs"})) {
    return fs +
           " is reached over the network: what is measured there is the network and a server with "
           "its caches, not a disk of this machine";
  }
  if (IsOneOf(fs, {"9p", "virtiofs"})) {
    return fs +
           " is a folder of the host: its page cache may answer instead of a disk. Give the "
           "virtual "
           "machine a disk of its own";
  }
  if (fs == "overlay") {
    return "overlay, as containers have it, puts files into other folders: what is measured there "
           "is the disk of the container's own layer. Mount a folder of the disk that is meant "
           "(docker run -v)";
  }
  // "fuse.sshfs" is one of them, "fuseblk" another (NTFS).
  if (fs.starts_with("fuse")) {
    return fs +
           " is served by a program of its own: what is measured there is that program, its cache "
           "and whatever it asks";
  }
  return "";
}

}  // namespace forebay
