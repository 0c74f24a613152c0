#include "forebay/memory/page_mapping.h"

#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/process/parallel.h"
#include "forebay/memory/available_memory.h"
#include "forebay/memory/numa.h"

namespace forebay {
namespace {

constexpr const char* kEnabledFile = "/sys/kernel/mm/transparent_hugepage/enabled";

std::byte* MapAt(std::byte* place, int64_t bytes, int flags) {
  void* const mapped = ::mmap(place, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

// 4 KiB pages (so far) at a multiple of `alignment`; nullptr with errno set.
std::byte* MapAligned(int64_t bytes, int64_t alignment) {
  const int64_t slack = alignment > kBasePageBytes ? alignment : 0;
  std::byte* const start = MapAt(nullptr, bytes + slack, 0);
  if (start == nullptr) return nullptr;
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(start));
  const int64_t before = (address + alignment - 1) / alignment * alignment - address;
  const int64_t after = slack - before;
  if (before > 0) UnmapPages(start, before);
  if (after > 0) UnmapPages(start + before + bytes, after);
  return start + before;
}

// The first `reserved_bytes` in reserved huge pages, the rest behind them; nullptr when there are
// not enough. The kernel sets the pages aside in mmap or refuses there.
std::byte* MapReserved(int64_t bytes, int64_t reserved_bytes) {
  std::byte* const place = MapAligned(bytes, kHugePageBytes);
  if (place == nullptr) return nullptr;
  // The place is given back and taken anew, not overwritten: a refused MAP_FIXED leaves a hole on
  // some kernels, into which another thread may map before it can be closed. Whoever takes the
  // place in between only makes this attempt fail.
  UnmapPages(place, bytes);
  constexpr int kReserved = MAP_HUGETLB | MAP_HUGE_2MB | MAP_FIXED_NOREPLACE;
  std::byte* const data = MapAt(place, reserved_bytes, kReserved);
  if (data == nullptr) return nullptr;
  bool placed = data == place;  // kernels before 4.17 take the place as a hint
  if (placed && bytes > reserved_bytes) {
    std::byte* const rest =
        MapAt(place + reserved_bytes, bytes - reserved_bytes, MAP_FIXED_NOREPLACE);
    placed = rest == place + reserved_bytes;
    if (rest != nullptr && !placed) UnmapPages(rest, bytes - reserved_bytes);
  }
  if (placed) return data;
  UnmapPages(data, reserved_bytes);
  return nullptr;
}

// Makes the pages of one part present. Returns errno.
int Populate(std::byte* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (::madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINTR && errno != EAGAIN) break;
  }
  // Before Linux 5.14 there is no such advice, and some sandboxes know less than their kernel.
  if (errno != EINVAL && errno != ENOSYS && errno != EPERM) return errno;
#endif
  for (int64_t at = 0; at < bytes; at += kBasePageBytes) {
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
  return 0;
}

// The kernel zeroes what it hands out at a few GB/s per thread, and a start waits for it. Threads
// pay from some hundred MiB on.
int PopulateInParallel(std::byte* data, int64_t bytes) {
  constexpr int64_t kPartBytes = int64_t{64} << 20;
  constexpr int64_t kMaxThreads = 8;
  const int64_t num_parts = (bytes + kPartBytes - 1) / kPartBytes;
  const int64_t num_threads = std::min<int64_t>(
      {num_parts / 2, kMaxThreads, static_cast<int64_t>(std::thread::hardware_concurrency())});
  if (num_threads <= 1) return Populate(data, bytes);
  std::atomic<int> failure{0};
  ThreadPool pool(static_cast<int>(num_threads), "prefault");
  pool.ParallelFor(num_parts, [&](int64_t part) {
    const int64_t first = part * kPartBytes;
    const int error = Populate(data + first, std::min(kPartBytes, bytes - first));
    if (error != 0) failure = error;
  });
  return failure;
}

// Advice for all rungs, then the pages themselves. Returns errno.
int Settle(PageMapping& mapping, const PageMappingOptions& options) {
  const auto size = static_cast<size_t>(mapping.size_bytes);
  // A child must not share these pages: copy-on-write would move them away from under a running
  // transfer. In a core dump they would be most of the machine's memory, and the user's data.
  ::madvise(mapping.data, size, MADV_DONTFORK);
  ::madvise(mapping.data, size, MADV_DONTDUMP);
  if (options.numa_node >= 0) {
    mapping.pages.note = PreferNumaNode({mapping.data, size}, options.numa_node);
  }
  return PopulateInParallel(mapping.data, mapping.size_bytes);
}

// Tells apart what the kernel gave from what it was asked for.
void JudgeTransparentHugePages(PageMapping& mapping, PageKind best) {
  PageTally& pages = mapping.pages;
  pages.base_bytes = mapping.size_bytes - pages.reserved_huge_bytes;
  const int64_t asked_bytes = mapping.huge_bytes - pages.reserved_huge_bytes;
  if (asked_bytes == 0 || best == PageKind::kBase) return;
  const std::span<const std::byte> body(mapping.data + pages.reserved_huge_bytes,
                                        static_cast<size_t>(asked_bytes));
  std::optional<int64_t> huge_bytes = HugeBytesByScan(body);
  if (!huge_bytes.has_value()) huge_bytes = HugeBytesBySmaps(body);
  pages.transparent_huge_bytes = huge_bytes.value_or(0);
  pages.base_bytes -= pages.transparent_huge_bytes;
  pages.missed_bytes = asked_bytes - pages.transparent_huge_bytes;
  if (pages.missed_bytes == 0) return;
  if (!huge_bytes.has_value()) {
    pages.missed_reason =
        "the kernel does not tell (neither /proc/self/pagemap nor /proc/self/smaps can be read). "
        "Mount /proc";
    return;
  }
  const absl::StatusOr<std::string> enabled = ReadWholeFile(kEnabledFile, 4096);
  pages.missed_reason = TransparentHugeObstacle(enabled.ok() ? *enabled : "",
                                                ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
}

// With `reserved_bytes` in reserved huge pages and the best that there is behind them.
PageMapping TryToMap(int64_t size_bytes, int64_t reserved_bytes,
                     const PageMappingOptions& options) {
  PageMapping mapping;
  mapping.size_bytes = size_bytes;
  mapping.huge_bytes = size_bytes / kHugePageBytes * kHugePageBytes;
  mapping.pages.reserved_huge_bytes = reserved_bytes;
  mapping.data =
      reserved_bytes > 0
          ? MapReserved(size_bytes, reserved_bytes)
          : MapAligned(size_bytes, mapping.huge_bytes > 0 ? kHugePageBytes : kBasePageBytes);
  if (mapping.data == nullptr) {
    mapping.error_number = errno;
    return mapping;
  }
  if (mapping.huge_bytes > reserved_bytes) {
    ::madvise(mapping.data + reserved_bytes,
              static_cast<size_t>(mapping.huge_bytes - reserved_bytes),
              options.best == PageKind::kBase ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  }
  // A limit of the control group on huge pages (hugetlb.2MB.max) shows only here.
  mapping.error_number = Settle(mapping, options);
  if (mapping.error_number != 0) {
    UnmapPages(mapping.data, size_bytes);
    mapping.data = nullptr;
    return mapping;
  }
  JudgeTransparentHugePages(mapping, options.best);
  return mapping;
}

}  // namespace

PageMapping MapPages(int64_t size_bytes, const PageMappingOptions& options) {
  FOREBAY_CHECK(size_bytes > 0 && size_bytes % kBasePageBytes == 0);
  const int64_t huge_bytes = size_bytes / kHugePageBytes * kHugePageBytes;
  if (huge_bytes > 0 && options.best == PageKind::kReservedHuge) {
    PageMapping mapping = TryToMap(size_bytes, huge_bytes, options);
    if (mapping.data != nullptr) return mapping;
    // What is reserved is nobody else's to use, so even a part of it is taken: it leaves as much
    // ordinary memory.
    const int64_t reserved_bytes = std::min(huge_bytes, FreeReservedHugeBytes());
    if (reserved_bytes > 0) mapping = TryToMap(size_bytes, reserved_bytes, options);
    if (mapping.data != nullptr) return mapping;
  }
  return TryToMap(size_bytes, 0, options);
}

void UnmapPages(std::byte* data, int64_t size_bytes) {
  ::munmap(data, static_cast<size_t>(size_bytes));
}

std::string TransparentHugeObstacle(std::string_view enabled, bool disabled_for_process) {
  if (disabled_for_process) {
    return "transparent huge pages are switched off for this process (prctl PR_SET_THP_DISABLE). "
           "Look in what started it: a service manager, a container runtime, a wrapper";
  }
  if (enabled.empty()) return "this kernel has no transparent huge pages. Take one that has";
  if (enabled.find("[never]") != std::string_view::npos) {
    return fmt::format("transparent huge pages are switched off. As root: echo madvise > {}",
                       kEnabledFile);
  }
  return "the kernel did not find 2 MiB in one piece often enough. As root: echo 1 > "
         "/proc/sys/vm/compact_memory, or leave more memory free";
}

}  // namespace forebay
