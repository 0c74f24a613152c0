// CUDA's device side as plain C++, for kernels that g++ compiles: NVIDIA's own headers give the
// types, and this the names that they lack there. A thread of a block is a fiber (block.h), and
// goes on until a barrier or an operation of its warp.
//
// Not for: anything but kernels (kernel.h includes it).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

namespace forebay::emulation {

// A CUDA thread, as its kernel sees it.
struct ThreadPlace {
  uint3 thread;
  uint3 block;
  dim3 block_dim;
  dim3 grid_dim;
  int linear = 0;  // in its block
};
// The one that runs. Grids run one at a time in the process.
extern ThreadPlace* running;

// Where a barrier or an operation of a warp stands in the kernel.
struct Site {
  const char* file;
  int line;
};

// A barrier of the block. Returns for how many of its threads `predicate` holds.
int SyncThreads(bool predicate, Site site);

// The lanes of `mask` meet. The last one calls `complete` (may be nullptr) for all, with what each
// has brought (nullptr for lanes that the mask does not name); then all go on. `orders_memory`:
// what
// __syncwarp does, and shuffles do not.
using Complete = void (*)(void* const* of_lanes, uint32_t mask);
void Meet(uint32_t mask, const char* operation, void* brought, Complete complete,
          bool orders_memory, Site site);

enum class ShuffleKind : uint8_t { kIndex, kUp, kDown, kXor };
uint64_t ShuffleBits(ShuffleKind kind, uint32_t mask, uint64_t bits, int operand, int width,
                     Site site);
uint32_t Ballot(uint32_t mask, bool predicate, Site site);

// Shared memory of the running block: the same for all its threads that pass a site. It begins as
// 0xff, which no float may be.
int NewSharedSite();
void* SharedAt(int site, size_t size_bytes, size_t alignment);
void* DynamicShared();

// cp.async: copied as late as is allowed, with 0xff in its place until then. `from_bytes` of
// `size_bytes` are read, and the rest becomes zero.
void CopyAsync(void* to, const void* from, int from_bytes, int size_bytes);
void CommitAsyncCopies();
void AwaitAsyncCopies(int most_pending);

// ldmatrix and mma, as ptx.h has them.
void LoadMatrices(uint32_t (&to)[4], const void* row, bool transposed);
void MultiplyBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void MultiplyFp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// Work of a library, which has the GPU's memory while it runs, and takes `seconds` by its clock.
cudaError_t EnqueueWork(cudaStream_t stream, std::function<void()> work, double seconds);
cudaError_t EnqueueGrid(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                        std::function<void()> thread);

// The NaN that arithmetic gives here: a GPU's only one, 0x7fffffff, or the host's (options.h).
float NanOf(float of_host);

template <typename T>
uint64_t BitsOf(T value) {
  static_assert(std::is_trivially_destructible_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const void*>(&value), sizeof(T));
  return bits;
}
template <typename T>
T OfBits(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

}  // namespace forebay::emulation

namespace forebay {

// As kernel.h has it for nvcc.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, Arguments&&... arguments) {
  return emulation::EnqueueGrid(
      grid, block, shared_bytes, stream,
      [kernel, all = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
        std::apply(kernel, all);
      });
}

}  // namespace forebay

#define FOREBAY_SHARED(type, name, ...)                                                           \
  static const int forebay_site_of_##name = ::forebay::emulation::NewSharedSite();                \
  auto& name = *static_cast<std::add_pointer_t<type __VA_ARGS__>>(::forebay::emulation::SharedAt( \
      forebay_site_of_##name, sizeof(type __VA_ARGS__), alignof(type)))
#define FOREBAY_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::forebay::emulation::DynamicShared())

// ---- CUDA's names ------------------------------------------------------------------------------
// NOLINTBEGIN(bugprone-reserved-identifier)

#define threadIdx (::forebay::emulation::running->thread)
#define blockIdx (::forebay::emulation::running->block)
#define blockDim (::forebay::emulation::running->block_dim)
#define gridDim (::forebay::emulation::running->grid_dim)
constexpr int warpSize = 32;  // NOLINT(readability-identifier-naming): CUDA's name

// The caller's place, as a default argument has it.
#define FOREBAY_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(FOREBAY_SITE) {
  ::forebay::emulation::SyncThreads(false, {file, line});
}
inline int __syncthreads_count(int predicate, FOREBAY_SITE) {
  return ::forebay::emulation::SyncThreads(predicate != 0, {file, line});
}
inline int __syncthreads_or(int predicate, FOREBAY_SITE) {
  return ::forebay::emulation::SyncThreads(predicate != 0, {file, line}) != 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, FOREBAY_SITE) {
  ::forebay::emulation::Meet(mask, "__syncwarp", nullptr, nullptr, true, {file, line});
}

#define FOREBAY_SHUFFLE(name, kind, operand_type)                                           \
  template <typename T>                                                                     \
  T name(unsigned mask, T value, operand_type operand, int width = 32, FOREBAY_SITE) {      \
    return ::forebay::emulation::OfBits<T>(::forebay::emulation::ShuffleBits(               \
        ::forebay::emulation::ShuffleKind::kind, mask, ::forebay::emulation::BitsOf(value), \
        static_cast<int>(operand), width, {file, line}));                                   \
  }
FOREBAY_SHUFFLE(__shfl_sync, kIndex, int)
FOREBAY_SHUFFLE(__shfl_up_sync, kUp, unsigned)
FOREBAY_SHUFFLE(__shfl_down_sync, kDown, unsigned)
FOREBAY_SHUFFLE(__shfl_xor_sync, kXor, int)
#undef FOREBAY_SHUFFLE

inline unsigned __ballot_sync(unsigned mask, int predicate, FOREBAY_SITE) {
  return ::forebay::emulation::Ballot(mask, predicate != 0, {file, line});
}
inline int __any_sync(unsigned mask, int predicate, FOREBAY_SITE) {
  return ::forebay::emulation::Ballot(mask, predicate != 0, {file, line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, FOREBAY_SITE) {
  return ::forebay::emulation::Ballot(mask, predicate != 0, {file, line}) == mask;
}
#undef FOREBAY_SITE
// NOLINTEND(bugprone-reserved-identifier)

#include "forebay/device/emulation/arithmetic_twin.h"
