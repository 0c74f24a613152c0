// Matrix products by oneDNN's matmul primitives, made once per shape: bf16 inputs, fp32 sums and
// result. Only for CPUs that multiply bf16 in hardware (AVX-512 BF16, AMX).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "forebay/base/dtype.h"
#include "forebay/model/cpu/scratch.h"

namespace forebay::cpu {

// The CPU (and oneDNN's limit on it, ONEDNN_MAX_CPU_ISA) has bf16 products.
bool CpuHasNativeBf16();

// c [m, n] (+)= a [m, k] * b [k, n]. Of the two strides of a and of b one is 1.
struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row_stride = 0, a_column_stride = 0;
  int64_t b_row_stride = 0, b_column_stride = 0;
  int64_t ldc = 0;
  bool accumulate = false;
  DType input = DType::kBF16;  // of a and b; kF32 runs the same code on any CPU, for tests

  // clang-tidy 14 takes the 0 that the result of <=> is compared with for a pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const MatmulShape&, const MatmulShape&) = default;
};

// Owned by one thread, but for Run.
class MatmulCache {
 public:
  explicit MatmulCache(int num_threads);
  ~MatmulCache();

  class Primitive;
  // Made on first use; lives as long as the cache. Call on the owning thread, with OpenMP confined
  // to it.
  Primitive& Get(const MatmulShape& shape);
  // Thread-safe for different values of `thread` (in [0, num_threads)).
  static void Run(Primitive& primitive, int thread, Scratch& scratch, const void* a, const void* b,
                  float* c);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay::cpu
