// Matrix products in bf16 on CPUs that multiply it: how each is cut into tasks, and the tasks. A
// cut depends on the shape alone, and so do the bits.
#pragma once

#include <cstdint>

#include "forebay/base/bfloat16.h"
#include "forebay/model/cpu/context_impl.h"

namespace forebay::cpu {

// c [m, n] (row stride ldc) (+)= a * b + bias.
struct NativeProduct {
  int64_t m = 0, n = 0, k = 0;
  const Bf16* a = nullptr;    // [m, k], dense
  bool a_transposed = false;  // it is stored [k, m]
  const Bf16* b = nullptr;    // [k, n] with these strides, one of which is 1
  int64_t b_row_stride = 0, b_column_stride = 0;
  const Bf16* bias = nullptr;  // [n] or nullptr
  float* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
};

// C is cut into blocks, and k into slices whose products are added in order.
struct NativePlan {
  int64_t block_m = 0, block_n = 0, slice_k = 0;
  int64_t num_m = 0, num_n = 0, num_k = 0;
  int64_t num_tasks() const { return num_m * num_n * num_k; }
};
NativePlan PlanNativeProduct(int64_t m, int64_t n, int64_t k, bool a_transposed);

// fp32 elements that the slices of a product take at most.
inline constexpr int64_t kMaxSlicedElems = int64_t{2} << 20;

void MultiplyNative(Context::Impl& impl, const NativeProduct& product);

}  // namespace forebay::cpu
