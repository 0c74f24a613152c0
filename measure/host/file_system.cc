#include "forebay/measure/host/file_system.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace forebay {
namespace {

bool IsOneOf(std::string_view fs, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, fs) != names.end();
}

}  // namespace

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
