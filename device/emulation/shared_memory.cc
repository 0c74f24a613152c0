// Shared memory of a block, and the copies that fill it beside its threads.
#include <algorithm>
#include <atomic>

#include "forebay/device/emulation/block.h"
#include "forebay/device/emulation/hardware_accesses.h"
#include "forebay/device/emulation/sanitizers.h"

namespace forebay::emulation {

int NewSharedSite() {
  static std::atomic<int> sites = 0;
  return sites++;
}

void* SharedAt(int site, size_t size_bytes, size_t alignment) {
  constexpr size_t kMostStaticBytes = size_t{48} << 10;
  Block& block = *TheMachine().block;
  for (const auto& [known, address] : block.shared_sites) {
    if (known == site) return address;
  }
  block.shared_bytes += size_bytes;
  if (block.shared_bytes - block.dynamic_bytes > kMostStaticBytes ||
      block.shared_bytes > TheOptions().most_shared_bytes) {
    Die("a kernel has %zu bytes of shared memory: a GPU has 48 KiB that are declared, %zu in all",
        block.shared_bytes, TheOptions().most_shared_bytes);
  }
  if (block.shared_sites.size() == kMostSharedSites) {
    Die("a kernel declares more than %zu variables in shared memory", kMostSharedSites);
  }
  alignment = std::max<size_t>(alignment, 16);
  const size_t begin = (block.shared_used + kRedZoneBytes + alignment - 1) / alignment * alignment;
  block.shared_used = begin + size_bytes;
  char* const address = block.shared + begin;
  Unpoison(address, size_bytes);
  block.shared_sites.emplace_back(site, address);
  return address;
}

void* DynamicShared() {
  const Block& block = *TheMachine().block;
  if (block.dynamic_bytes == 0) {
    Die("a kernel uses dynamic shared memory, and its launch gave none");
  }
  return block.shared + kRedZoneBytes;
}

void DieUnlessAligned(const char* operation, const void* address, int size_bytes) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(size_bytes) == 0) return;
  Die("%s of %d bytes at %p, which is not aligned to them", operation, size_bytes, address);
}

void CopyAsync(void* to, const void* from, int from_bytes, int size_bytes) {
  constexpr int kJunk = 0xff;
  DieUnlessAligned("cp.async", to, size_bytes);
  DieUnlessAligned("cp.async", from, size_bytes);
  Thread& self = Self();
  FillBytes(to, kJunk, static_cast<size_t>(size_bytes));
  if (self.copies.size() == kMostCopies) {
    Die("a thread has more than %zu copies under way", kMostCopies);
  }
  self.copies.push_back({to, from, from_bytes, size_bytes, self.copy_group});
}

void CommitAsyncCopies() {
  ++Self().copy_group;
}

void AwaitAsyncCopies(int most_pending) {
  Thread& self = Self();
  const int first_pending = self.copy_group - most_pending;
  size_t num_kept = 0;
  for (size_t i = 0; i < self.copies.size(); ++i) {
    const PendingCopy copy = self.copies[i];
    if (copy.group >= first_pending && most_pending > 0) {
      self.copies[num_kept++] = copy;
      continue;
    }
    CopyBytes(copy.to, copy.from, static_cast<size_t>(copy.from_bytes));
    FillBytes(static_cast<char*>(copy.to) + copy.from_bytes, 0,
              static_cast<size_t>(copy.size_bytes - copy.from_bytes));
  }
  self.copies.resize(num_kept);
}

}  // namespace forebay::emulation
