#include "forebay/model/cpu/scratch.h"

#include <sys/mman.h>

#include "forebay/base/check.h"

namespace forebay::cpu {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t AlignmentFor(int64_t bytes) {
  return bytes >= kHugePageBytes ? kHugePageBytes : kLineBytes;
}

}  // namespace

int64_t ScratchAllocationBytes(int64_t bytes) {
  const int64_t alignment = AlignmentFor(bytes);
  return (bytes + alignment - 1) / alignment * alignment;
}

void* Scratch::GetBytes(Slot slot, int64_t bytes) {
  Block& block = blocks_[static_cast<size_t>(slot)];
  if (block.size_bytes < bytes) {
    const int64_t alignment = AlignmentFor(bytes);
    block.memory.reset();  // before the new one, so that a growing slot is never there twice
    block.size_bytes = ScratchAllocationBytes(bytes);
    block.memory.reset(
        std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(block.size_bytes)));
    FOREBAY_CHECK(block.memory != nullptr);
    if (alignment == kHugePageBytes) {
      // Advice only: without huge pages everything works, slower.
      (void)madvise(block.memory.get(), static_cast<size_t>(block.size_bytes), MADV_HUGEPAGE);
    }
  }
  return block.memory.get();
}

int64_t Scratch::allocated_bytes() const {
  int64_t total = 0;
  for (const Block& block : blocks_) total += block.size_bytes;
  return total;
}

}  // namespace forebay::cpu
