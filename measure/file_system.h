// File systems by name: what they are, and which of them are no disk.
#pragma once

#include <cstdint>
#include <string>

namespace forebay {

// "nfs" of the number that statfs has for it, for those that StorageWarnings knows; "": another.
std::string FileSystemOfMagic(int64_t magic);
// As statfs tells it, for where the list of mounts does not have the folder (a chroot, no /proc).
std::string FileSystemAt(const std::string& directory);

// In a sentence, why figures from a file system of this name are not those of a disk below it: the
// network, another program or other folders are in between. "": nothing known.
std::string WhatStandsBetween(const std::string& fs);

}  // namespace forebay
