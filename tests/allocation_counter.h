// Counts the allocations of a test program by replacing its global operator new. Include it in
// exactly one source of the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace forebay {

inline std::atomic<int64_t> num_allocations = 0;
inline constexpr size_t kLargeBytes = size_t{16} << 10;
inline std::atomic<int64_t> num_large_allocations = 0;  // of kLargeBytes or more

inline void CountAllocation(size_t size_bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (size_bytes >= kLargeBytes) num_large_allocations.fetch_add(1, std::memory_order_relaxed);
}

inline void* CountedAllocation(size_t size_bytes) {
  CountAllocation(size_bytes);
  void* const memory = std::malloc(size_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace forebay

// The attribute: inlined on one side only, a replaced pair looks mismatched to g++.
void* operator new(size_t size_bytes) {
  return forebay::CountedAllocation(size_bytes);
}
void* operator new[](size_t size_bytes) {
  return forebay::CountedAllocation(size_bytes);
}
// std::stable_sort's, for one. A sanitizer has its own unless it is replaced too.
void* operator new(size_t size_bytes, const std::nothrow_t&) noexcept {
  forebay::CountAllocation(size_bytes);
  return std::malloc(size_bytes);
}
void* operator new[](size_t size_bytes, const std::nothrow_t&) noexcept {
  forebay::CountAllocation(size_bytes);
  return std::malloc(size_bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
