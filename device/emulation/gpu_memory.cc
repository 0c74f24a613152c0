#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "forebay/device/emulation/hardware_accesses.h"
#include "forebay/device/emulation/runtime.h"
#include "forebay/device/emulation/sanitizers.h"

namespace forebay::emulation {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kJunk = 0xff;

size_t ArenaBytes() {
  return 4 * TheOptions().gpu_bytes + (size_t{1} << 30);
}

void* Map(void* at, size_t size, int protection) {
  const int fixed = at == nullptr ? 0 : MAP_FIXED;
  void* const mapped =
      mmap(at, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  // Open and Close take time for every page; where there are none as large they only take longer.
  madvise(mapped, size, MADV_HUGEPAGE);
  return mapped;
}

}  // namespace

GpuMemory::GpuMemory() {
  void* const arena = Map(nullptr, ArenaBytes(), PROT_NONE);
  if (arena == MAP_FAILED) Die("there is no address space for the GPU's memory");
  arena_ = static_cast<char*>(arena);
}

// Where a gap begins that has room, with a page on both sides.
size_t GpuMemory::FirstFit(size_t size_in_pages) const {
  size_t begin = kPageBytes;
  for (const auto& [at, allocation] : allocations_) {
    const auto offset = static_cast<size_t>(at - arena_);
    if (offset >= begin + size_in_pages + kPageBytes) break;
    begin = offset + allocation.size_in_pages + kPageBytes;
  }
  return begin;
}

cudaError_t GpuMemory::Allocate(void** address, size_t size) {
  const size_t size_in_pages = (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (size_in_pages > free_bytes()) return cudaErrorMemoryAllocation;
  if (size == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  const size_t begin = FirstFit(size_in_pages);
  if (begin + size_in_pages + kPageBytes > ArenaBytes()) return cudaErrorMemoryAllocation;
  char* const memory = arena_ + begin;
  top_ = std::max(top_, begin + size_in_pages + kPageBytes);
  Open();
  // New pages: to TSan nothing was there before.
  Map(memory, size_in_pages, PROT_READ | PROT_WRITE);
  Unpoison(memory, size_in_pages);
  std::memset(memory, kJunk, size_in_pages);
  Poison(memory + size, size_in_pages - size);
  Poison(memory - kPageBytes, kPageBytes);
  Poison(memory + size_in_pages, kPageBytes);
  allocations_[memory] = {size, size_in_pages};
  used_ += size_in_pages;
  Close();
  Counters& counters = TheGpu().counters;
  counters.allocated_bytes += static_cast<int64_t>(size);
  counters.peak_allocated_bytes = std::max(counters.peak_allocated_bytes, counters.allocated_bytes);
  *address = memory;
  return cudaSuccess;
}

void GpuMemory::CheckBehind(const char* begin, const Allocation& allocation) const {
  for (size_t i = allocation.size; i < allocation.size_in_pages; ++i) {
    Unpoison(begin + i, 1);
    if (static_cast<unsigned char>(begin[i]) == kJunk) continue;
    Die("device memory was written %zu bytes behind an allocation of %zu bytes",
        i - allocation.size, allocation.size);
  }
}

void GpuMemory::Free(void* address) {
  if (address == nullptr) return;
  const auto it = allocations_.find(static_cast<char*>(address));
  if (it == allocations_.end()) Die("cudaFree(%p): it is not allocated", address);
  const auto [begin, allocation] = *it;
  Open();
  CheckBehind(begin, allocation);
  {  // To TSan the caller writes to all of it: every use has to come before.
    const TsanAs as(Caller());
    FillBytes(begin, kJunk, allocation.size);
    Map(begin, allocation.size_in_pages, PROT_READ | PROT_WRITE);
  }
  Poison(begin, allocation.size_in_pages);
  used_ -= allocation.size_in_pages;
  TheGpu().counters.allocated_bytes -= static_cast<int64_t>(allocation.size);
  allocations_.erase(it);
  Close();
}

bool GpuMemory::Contains(const void* address) const {
  const auto* const p = static_cast<const char*>(address);
  return p >= arena_ && p < arena_ + ArenaBytes();
}

void GpuMemory::CheckIsDevice(const void* address, size_t size, const char* call) const {
  const auto* const p = static_cast<const char*>(address);
  auto it = allocations_.upper_bound(const_cast<char*>(p));
  if (!Contains(address) || it == allocations_.begin()) {
    Die("%s: %p is no device memory", call, address);
  }
  --it;
  const auto offset = static_cast<size_t>(p - it->first);
  if (offset + size <= it->second.size) return;
  Die("%s: %zu bytes at offset %zu of an allocation of %zu", call, size, offset, it->second.size);
}

void GpuMemory::CheckIsHost(const void* address, const char* call) const {
  if (Contains(address)) Die("%s: %p is device memory", call, address);
}

void GpuMemory::Open() {
  if (num_open_++ == 0 && top_ > 0) mprotect(arena_, top_, PROT_READ | PROT_WRITE);
}

void GpuMemory::Close() {
  if (--num_open_ == 0 && top_ > 0) mprotect(arena_, top_, PROT_NONE);
}

}  // namespace forebay::emulation
