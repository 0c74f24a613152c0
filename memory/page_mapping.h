// Anonymous memory in the best pages that the machine gives: reserved huge pages as far as there
// are any, then transparent ones, then 4 KiB. Every page is there when this returns, so that
// nothing faults later on.
//
// Not for users: HostBuffer owns such memory and charges it to a budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "forebay/memory/page_tally.h"

namespace forebay {

struct PageMapping {
  std::byte* data = nullptr;  // nullptr: refused, error_number says why
  int64_t size_bytes = 0;
  int64_t huge_bytes = 0;  // from the start: whole 2 MiB, in huge pages where there are any
  PageTally pages;
  int error_number = 0;
};

struct PageMappingOptions {
  PageKind best = PageKind::kReservedHuge;  // the rung to start on
  int numa_node = -1;                       // where the memory should be; -1: anywhere
};

// Zeroed, 2 MiB-aligned when it is that large, not inherited by children, not in core dumps. Not
// one byte more than asked for: what is left of `size_bytes` after whole 2 MiB lies behind them in
// 4 KiB pages, so that small buffers take no huge page. Requires: a positive multiple of 4 KiB.
PageMapping MapPages(int64_t size_bytes, const PageMappingOptions& options);
void UnmapPages(std::byte* data, int64_t size_bytes);

// How much of `memory` (page-aligned) lies in huge pages now, as the kernel tells: by asking for
// the range (Linux 6.7), or by reading all of smaps. nullopt: it does not tell.
std::optional<int64_t> HugeBytesByScan(std::span<const std::byte> memory);
std::optional<int64_t> HugeBytesBySmaps(std::span<const std::byte> memory);

// Why memory is in 4 KiB pages though transparent huge pages were asked for, and what to do.
// `enabled`: contents of /sys/kernel/mm/transparent_hugepage/enabled, "" when there is no such
// file.
std::string TransparentHugeObstacle(std::string_view enabled, bool disabled_for_process);

}  // namespace forebay
