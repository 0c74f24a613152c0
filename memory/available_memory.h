// How much memory there is to be had.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace forebay {

// Memory that the process may use, in bytes: the least of MemAvailable and of the room that is left
// in its cgroups (v2 and v1, with every parent; the page cache that can be dropped counts as room),
// and the reserved huge pages, which both leave out. `root` stands for "/" in tests.
int64_t AvailableMemoryBytes(const std::string& root = "");

// The room that is left in the cgroups alone; nullopt: they have no limit.
std::optional<int64_t> CgroupRoomBytes(const std::string& root = "");

// AvailableMemoryBytes without the reserved huge pages: for memory that takes none of them.
int64_t OrdinaryMemoryBytes(const std::string& root = "");

// What is in reserved huge pages of 2 MiB (vm.nr_hugepages) that nobody uses or was promised
// and that the cgroups allow. Buffers take these first (page_mapping.h).
int64_t FreeReservedHugeBytes(const std::string& root = "");

}  // namespace forebay
