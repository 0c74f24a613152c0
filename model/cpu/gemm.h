// Matrix products: fp32 blocks by dnnl_sgemm (for fp16 with operands and results rounded to it), or
// in bf16 where the CPU multiplies that (native_products.h).
#pragma once

#include <cstdint>

#include "forebay/base/bfloat16.h"
#include "forebay/model/cpu/context_impl.h"
#include "forebay/model/cpu/ops.h"

namespace forebay::cpu {

// Floats of widened weights that one task keeps: near the size of a second-level cache.
inline constexpr int64_t kWeightPanelElems = 256 * 1024;

// How C [m, n] is cut into tasks: a function of the shape alone.
struct BlockPlan {
  int64_t block_m = 0, block_n = 0;
  int64_t num_m = 0, num_n = 0;
  int64_t num_tasks() const { return num_m * num_n; }
};
BlockPlan PlanBlocks(int64_t m, int64_t n);

// One product on the calling thread, row-major: c (+)= alpha * op(a) * op(b), c overwritten when
// !accumulate.
void SingleThreadGemm(const GemmShape& shape, float alpha, const float* a, const float* b,
                      float* c);

// A matrix stored as [rows, row_stride] in any type, read as B [k, n] of a product: b(k, n) =
// w(n, k) when `transposed`, else w(k, n).
struct WeightOperand {
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  int64_t row_stride = 0;
  bool transposed = false;
};
// Activations as products read them: in bf16 where the CPU multiplies that, else in fp32 (with
// Precision::kFp16 rounded to it).
struct Operand {
  const float* wide = nullptr;   // not read where `narrow` is and weights are bf16
  int64_t row_stride = 0;        // of `wide`
  const Bf16* narrow = nullptr;  // dense
};
// Makes one of a [rows, columns]: `a` itself, or a copy in `slot`, which lasts until that is used
// again.
Operand MakeOperand(Context::Impl& impl, Slot slot, const float* a, int64_t rows, int64_t columns,
                    int64_t row_stride);

// c [m, n] (row stride ldc) (+)= a [m, k] * b + bias. bias: [n] in the weights' dtype or nullptr.
// With Precision::kFp16 what is computed is rounded to fp16 with its bias, then written or added.
void WeightGemm(Context::Impl& impl, int64_t m, int64_t n, int64_t k, const Operand& a,
                const WeightOperand& b, const void* bias, float* c, int64_t ldc, bool accumulate);
// c [m, n] (row stride ldc) += a^T b, with a [k, m] and b [k, n].
void OuterGemm(Context::Impl& impl, int64_t m, int64_t n, int64_t k, const Operand& a,
               const Operand& b, float* c, int64_t ldc);

inline const void* ElementAt(const void* data, DType dtype, int64_t index) {
  return static_cast<const std::byte*>(data) + index * SizeOf(dtype);
}

}  // namespace forebay::cpu
