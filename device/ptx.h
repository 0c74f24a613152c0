// The PTX that kernels use, each instruction a small function with a twin on the host. Layouts of
// fragments: PTX ISA, "Matrix fragments for mma.m16n8k16".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "forebay/device/kernel.h"

namespace forebay {

#ifdef __CUDACC__
#define FOREBAY_DEVICE __device__ __forceinline__
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define FOREBAY_HAS_AMPERE 1  // cp.async, mma of bf16
#else
#define FOREBAY_HAS_AMPERE 0
#endif
#else
#define FOREBAY_DEVICE inline
#ifndef FOREBAY_HAS_AMPERE
#define FOREBAY_HAS_AMPERE 1  // tests compile with 0 too: Turing's branch
#endif
#endif

// ---- Copies to shared memory beside the thread, in groups ---------------------------------------

// 16 bytes, aligned to that. Where `is_there` is false nothing is read, and they become zero.
FOREBAY_DEVICE void CopyAsync16(void* shared, const void* global, bool is_there = true) {
#ifndef __CUDACC__
  emulation::CopyAsync(shared, global, is_there ? 16 : 0, 16);
#elif FOREBAY_HAS_AMPERE
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(is_there ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(shared) = is_there ? *static_cast<const uint4*>(global) : uint4{0, 0, 0, 0};
#endif
}
// Ends the group of the copies since the last one.
FOREBAY_DEVICE void CommitCopies() {
#ifndef __CUDACC__
  emulation::CommitAsyncCopies();
#elif FOREBAY_HAS_AMPERE
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most so many of the thread's own groups are under way.
template <int kMostPending>
FOREBAY_DEVICE void AwaitCopies() {
#ifndef __CUDACC__
  emulation::AwaitAsyncCopies(kMostPending);
#elif FOREBAY_HAS_AMPERE
  asm volatile("cp.async.wait_group %0;" ::"n"(kMostPending) : "memory");
#endif
}

// ---- Matrices -----------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements from shared memory, by all lanes of a warp. Lane l gives row
// l % 8 of matrix l / 8 (16 bytes, aligned to that), and receives of each matrix elements
// 2 * (l % 4) and the next of row l / 4; kTransposed: of its transpose.
template <bool kTransposed = false>
FOREBAY_DEVICE void LoadMatrices(uint32_t (&to)[4], const void* row) {
#ifndef __CUDACC__
  emulation::LoadMatrices(to, row, kTransposed);
#else
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// d += a * b, 16x8x16, bf16 in and fp32 sums, by all lanes of a warp. Lane l, with g = l / 4 and
// t = l % 4, has
//   a[0] = A[g][2t, +1]          a[1] = A[g + 8][2t, +1]
//   a[2] = A[g][2t + 8, +9]      a[3] = A[g + 8][2t + 8, +9]
//   b[0] = B[2t, +1][g]          b[1] = B[2t + 8, +9][g]
//   d[0], d[1] = D[g][2t, +1]    d[2], d[3] = D[g + 8][2t, +1]
// The twin sums in double and rounds once: a GPU's sums are not specified to the bit.
FOREBAY_DEVICE void MultiplyBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifndef __CUDACC__
  emulation::MultiplyBf16(d, a, b);
#elif FOREBAY_HAS_AMPERE
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();  // Turing has no mma of bf16: kernels ask FOREBAY_HAS_AMPERE
#endif
}

// The same of fp16.
FOREBAY_DEVICE void MultiplyFp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifndef __CUDACC__
  emulation::MultiplyFp16(d, a, b);
#elif FOREBAY_HAS_AMPERE
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();  // Turing has only the half of it, m16n8k8
#endif
}

// Two floats as two bf16, the first in the low half: to nearest, ties to even.
FOREBAY_DEVICE uint32_t PackBf16(float low, float high) {
#ifdef __CUDACC__
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  return static_cast<uint32_t>(emulation::BitsOf(__floats2bfloat162_rn(low, high)));
#endif
}
// The same as two fp16; what is beyond their range becomes infinite.
FOREBAY_DEVICE uint32_t PackFp16(float low, float high) {
#ifdef __CUDACC__
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
#else
  return static_cast<uint32_t>(emulation::BitsOf(__floats2half2_rn(low, high)));
#endif
}

}  // namespace forebay
