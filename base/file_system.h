// File systems by name, as statfs numbers them.
#pragma once

#include <cstdint>
#include <string>

namespace forebay {

// "nfs" of the number that statfs has for it, for those that forebay treats apart or has something
// to say of; "": another.
std::string FileSystemOfMagic(int64_t magic);
// The file system of a file or a folder; "" too where it is not there.
std::string FileSystemOf(int fd);
std::string FileSystemAt(const std::string& path);

}  // namespace forebay
