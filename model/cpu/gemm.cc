#include "forebay/model/cpu/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <cstring>

#include "forebay/base/check.h"
#include "forebay/model/cpu/equal_blocks.h"
#include "forebay/model/cpu/kernels.h"
#include "forebay/model/cpu/native_products.h"

namespace forebay::cpu {
namespace {

BlockPlan MakePlan(int64_t m, int64_t n, int64_t largest_m, int64_t largest_n) {
  BlockPlan plan;
  plan.block_m = EqualBlocks(m, largest_m, 8);
  plan.block_n = EqualBlocks(n, largest_n, 16);
  plan.num_m = DivideRoundingUp(m, plan.block_m);
  plan.num_n = DivideRoundingUp(n, plan.block_n);
  return plan;
}

// A block of C, as a task computes it.
struct Block {
  int64_t m_begin, m_size, n_begin, n_size;
};
Block BlockOf(const BlockPlan& plan, int64_t m, int64_t n, int64_t task) {
  const int64_t m_begin = task % plan.num_m * plan.block_m;
  const int64_t n_begin = task / plan.num_m * plan.block_n;
  return {m_begin, std::min(plan.block_m, m - m_begin), n_begin,
          std::min(plan.block_n, n - n_begin)};
}

struct WeightProduct {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  WeightOperand b;
  const void* bias;
  float* c;
  int64_t ldc;
  bool accumulate;
};

// a [rows, columns] in bf16, rounded to nearest even.
Bf16* Narrow(Context::Impl& impl, Slot slot, const float* a, int64_t rows, int64_t columns,
             int64_t lda) {
  Bf16* out = impl.shared.Get<Bf16>(slot, rows * columns);
  impl.ParallelBlocks(rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels::NarrowToBf16(a + row * lda, columns, out + row * columns);
    }
  });
  return out;
}

// a [rows, columns] in fp32, rounded to fp16.
const float* RoundedToFp16(Context::Impl& impl, Slot slot, const float* a, int64_t rows,
                           int64_t columns, int64_t lda) {
  float* const out = impl.shared.Get<float>(slot, rows * columns);
  impl.ParallelBlocks(rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels::RoundToFp16(a + row * lda, columns, out + row * columns);
    }
  });
  return out;
}

// Where a block of a product goes.
struct Target {
  float* c;
  int64_t ldc;
  bool accumulate;
};

// The block's columns of B, in chunks of K: fp32 weights are read where they are, 16-bit ones
// through a widened panel.
void MultiplyBlock(const WeightProduct& p, const Block& block, Scratch& scratch,
                   const Target& target) {
  const bool widened = p.b.dtype != DType::kF32;
  const int64_t chunk = widened ? EqualBlocks(p.k, kWeightPanelElems / block.n_size, 8) : p.k;
  float* panel = widened ? scratch.Get<float>(Slot::kWeightPanel, kWeightPanelElems) : nullptr;
  for (int64_t k = 0; k < p.k; k += chunk) {
    const int64_t depth = std::min(chunk, p.k - k);
    const int64_t first =
        p.b.transposed ? block.n_begin * p.b.row_stride + k : k * p.b.row_stride + block.n_begin;
    const int64_t rows = p.b.transposed ? block.n_size : depth;
    const int64_t columns = p.b.transposed ? depth : block.n_size;
    if (widened) {
      for (int64_t row = 0; row < rows; ++row) {
        kernels::Widen(ElementAt(p.b.data, p.b.dtype, first + row * p.b.row_stride), p.b.dtype,
                       columns, panel + row * columns);
      }
    }
    SingleThreadGemm({.m = block.m_size,
                      .n = block.n_size,
                      .k = depth,
                      .transpose_b = p.b.transposed,
                      .accumulate = target.accumulate || k > 0,
                      .lda = p.lda,
                      .ldb = widened ? columns : p.b.row_stride,
                      .ldc = target.ldc},
                     1.0f, p.a + block.m_begin * p.lda + k,
                     widened ? panel : static_cast<const float*>(p.b.data) + first, target.c);
  }
  if (p.bias == nullptr) return;
  const void* bias = ElementAt(p.bias, p.b.dtype, block.n_begin);
  for (int64_t row = 0; row < block.m_size; ++row) {
    kernels::AddWeights(bias, p.b.dtype, block.n_size, target.c + row * target.ldc);
  }
}

void Fp32Block(const WeightProduct& p, const Block& block, Scratch& scratch, bool rounds_to_fp16) {
  float* const c = p.c + block.m_begin * p.ldc + block.n_begin;
  if (!rounds_to_fp16) {
    MultiplyBlock(p, block, scratch, {c, p.ldc, p.accumulate});
    return;
  }
  float* const product = scratch.Get<float>(Slot::kProduct, kWeightPanelElems);
  FOREBAY_CHECK(block.m_size * block.n_size <= kWeightPanelElems);
  MultiplyBlock(p, block, scratch, {product, block.n_size, false});
  for (int64_t row = 0; row < block.m_size; ++row) {
    const auto put = p.accumulate ? kernels::AddRoundedToFp16 : kernels::RoundToFp16;
    put(product + row * block.n_size, block.n_size, c + row * p.ldc);
  }
}

// c += a^T b, dense.
struct OuterProduct {
  int64_t m, n, k;
  const float* a;  // [k, m]
  int64_t lda;
  const float* b;  // [k, n]
  int64_t ldb;
  float* c;
  int64_t ldc;
};

// The block's columns of A are copied first: as they are stored, their rows can be a multiple of 4
// KiB apart, and then all fall into the same few cache sets (measured: half the speed).
void OuterBlock(const OuterProduct& p, const Block& block, Scratch& scratch) {
  constexpr int64_t kPadding = 16;
  const int64_t stride = block.m_size + kPadding;
  const int64_t chunk = EqualBlocks(p.k, kWeightPanelElems / stride, 1);
  float* panel = scratch.Get<float>(Slot::kWeightPanel, kWeightPanelElems);
  for (int64_t first = 0; first < p.k; first += chunk) {
    const int64_t depth = std::min(chunk, p.k - first);
    for (int64_t row = 0; row < depth; ++row) {
      std::memcpy(panel + row * stride, p.a + (first + row) * p.lda + block.m_begin,
                  static_cast<size_t>(block.m_size) * sizeof(float));
    }
    SingleThreadGemm({.m = block.m_size,
                      .n = block.n_size,
                      .k = depth,
                      .transpose_a = true,
                      .accumulate = true,
                      .lda = stride,
                      .ldb = p.ldb,
                      .ldc = p.ldc},
                     1.0f, panel, p.b + first * p.ldb + block.n_begin,
                     p.c + block.m_begin * p.ldc + block.n_begin);
  }
}

// As PlanBlocks, for OuterBlock: its copy of A pays the more columns share it.
BlockPlan PlanOuterBlocks(int64_t m, int64_t n) {
  static constexpr int64_t kSizes[][2] = {{256, 576}, {128, 576}, {128, 288}};
  for (const auto& [block_m, block_n] : kSizes) {
    const BlockPlan plan = MakePlan(m, n, block_m, block_n);
    if (plan.num_tasks() >= kEnoughTasks) return plan;
  }
  return MakePlan(m, n, 64, 288);
}

}  // namespace

// Blocks are large (packing them then costs little) until there are too few tasks to share; smaller
// than these, a block spends more on packing than it wins. Measured by bench/model_ops_bench.
BlockPlan PlanBlocks(int64_t m, int64_t n) {
  static constexpr int64_t kSizes[][2] = {{512, 384}, {512, 192}, {512, 96}, {256, 96}};
  for (const auto& [block_m, block_n] : kSizes) {
    const BlockPlan plan = MakePlan(m, n, block_m, block_n);
    if (plan.num_tasks() >= kEnoughTasks) return plan;
  }
  return MakePlan(m, n, 128, 96);
}

void SingleThreadGemm(const GemmShape& shape, float alpha, const float* a, const float* b,
                      float* c) {
  FOREBAY_CHECK(dnnl_sgemm(shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m,
                           shape.n, shape.k, alpha, a, shape.lda, b, shape.ldb,
                           shape.accumulate ? 1.0f : 0.0f, c, shape.ldc) == dnnl_success);
}

void Gemm(Context& context, const GemmShape& shape, const float* a, const float* b, float* c) {
  const BlockPlan plan = PlanBlocks(shape.m, shape.n);
  context.impl().Parallel(plan.num_tasks(), [&](int64_t task, int) {
    const Block block = BlockOf(plan, shape.m, shape.n, task);
    GemmShape part = shape;
    part.m = block.m_size;
    part.n = block.n_size;
    SingleThreadGemm(part, 1.0f,
                     a + (shape.transpose_a ? block.m_begin : block.m_begin * shape.lda),
                     b + (shape.transpose_b ? block.n_begin * shape.ldb : block.n_begin),
                     c + block.m_begin * shape.ldc + block.n_begin);
  });
}

Operand MakeOperand(Context::Impl& impl, Slot slot, const float* a, int64_t rows, int64_t columns,
                    int64_t row_stride) {
  if (impl.native_bf16) {
    return {a, row_stride, Narrow(impl, slot, a, rows, columns, row_stride)};
  }
  if (impl.rounds_to_fp16) {
    return {RoundedToFp16(impl, slot, a, rows, columns, row_stride), columns, nullptr};
  }
  return {a, row_stride, nullptr};
}

void WeightGemm(Context::Impl& impl, int64_t m, int64_t n, int64_t k, const Operand& a,
                const WeightOperand& b, const void* bias, float* c, int64_t ldc, bool accumulate) {
  if (m == 0) return;
  if (a.narrow != nullptr && b.dtype == DType::kBF16) {
    MultiplyNative(impl, {.m = m,
                          .n = n,
                          .k = k,
                          .a = a.narrow,
                          .b = static_cast<const Bf16*>(b.data),
                          .b_row_stride = b.transposed ? 1 : b.row_stride,
                          .b_column_stride = b.transposed ? b.row_stride : 1,
                          .bias = static_cast<const Bf16*>(bias),
                          .c = c,
                          .ldc = ldc,
                          .accumulate = accumulate});
    return;
  }
  const WeightProduct product{m, n, k, a.wide, a.row_stride, b, bias, c, ldc, accumulate};
  const BlockPlan plan = PlanBlocks(m, n);
  impl.Parallel(plan.num_tasks(), [&](int64_t task, int thread) {
    Fp32Block(product, BlockOf(plan, m, n, task), impl.thread_scratch(thread), impl.rounds_to_fp16);
  });
}

void OuterGemm(Context::Impl& impl, int64_t m, int64_t n, int64_t k, const Operand& a,
               const Operand& b, float* c, int64_t ldc) {
  if (k == 0) return;
  if (a.narrow != nullptr) {
    MultiplyNative(impl, {.m = m,
                          .n = n,
                          .k = k,
                          .a = a.narrow,
                          .a_transposed = true,
                          .b = b.narrow,
                          .b_row_stride = n,
                          .b_column_stride = 1,
                          .c = c,
                          .ldc = ldc,
                          .accumulate = true});
    return;
  }
  const OuterProduct product{m, n, k, a.wide, a.row_stride, b.wide, b.row_stride, c, ldc};
  const BlockPlan plan = PlanOuterBlocks(m, n);
  impl.Parallel(plan.num_tasks(), [&](int64_t task, int thread) {
    OuterBlock(product, BlockOf(plan, m, n, task), impl.thread_scratch(thread));
  });
}

}  // namespace forebay::cpu
