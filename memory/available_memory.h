// How much memory there is to be had.
#pragma once

#include <cstdint>
#include <string>

namespace forebay {

// Memory that the process may use: the least of MemAvailable and of the room that is left in its
// cgroups (v2 and v1, with every parent; the page cache that can be dropped counts as room), in
// bytes. `root` stands for "/" in tests.
int64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace forebay
