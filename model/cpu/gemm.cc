#include "forebay/model/cpu/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <cstring>

#include "forebay/base/check.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {
namespace {

int64_t DivideRoundingUp(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// `size` in the fewest equal blocks of at most `largest`, each a multiple of `unit` (but for the
// last).
int64_t EqualBlocks(int64_t size, int64_t largest, int64_t unit) {
  const int64_t count = DivideRoundingUp(size, largest);
  return DivideRoundingUp(DivideRoundingUp(size, count), unit) * unit;
}

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

// Rows of A that one native task multiplies. Tasks cut M alone: then every operand is dense, which
// oneDNN's fast implementations want, and the weights are used as stored.
int64_t NativeBlockRows(int64_t m) {
  return m >= 2048 ? 256 : m >= 512 ? 128 : 64;
}

// a: [m, k] bf16, dense.
void NativeProduct(Context::Impl& impl, const WeightProduct& p, const Bf16* a, const void* b) {
  const int64_t block = std::min(NativeBlockRows(p.m), p.m);
  MatmulShape shape{.m = block,
                    .n = p.n,
                    .k = p.k,
                    .lda = p.k,
                    .ldc = p.ldc,
                    .b_row_stride = p.b.transposed ? 1 : p.b.row_stride,
                    .b_column_stride = p.b.transposed ? p.b.row_stride : 1,
                    .accumulate = p.accumulate};
  MatmulCache::Primitive& whole = impl.matmuls.Get(shape);
  const int64_t tail = p.m % block;
  shape.m = tail;
  MatmulCache::Primitive& last = tail == 0 ? whole : impl.matmuls.Get(shape);
  impl.Parallel(DivideRoundingUp(p.m, block), [&](int64_t task, int thread) {
    const int64_t begin = task * block;
    const int64_t rows = std::min(block, p.m - begin);
    float* c = p.c + begin * p.ldc;
    MatmulCache::Run(rows == block ? whole : last, thread, impl.thread_scratch(thread),
                     a + begin * p.k, b, c);
    if (p.bias == nullptr) return;
    for (int64_t row = 0; row < rows; ++row) {
      kernels::AddWeights(p.bias, p.b.dtype, p.n, c + row * p.ldc);
    }
  });
}

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
  const float* b;  // [k, n]
  float* c;
  int64_t ldc;
  bool rounds_a_to_fp16;
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
      const float* const from = p.a + (first + row) * p.m + block.m_begin;
      float* const to = panel + row * stride;
      if (p.rounds_a_to_fp16) {
        kernels::RoundToFp16(from, block.m_size, to);
      } else {
        std::memcpy(to, from, static_cast<size_t>(block.m_size) * sizeof(float));
      }
    }
    SingleThreadGemm({.m = block.m_size,
                      .n = block.n_size,
                      .k = depth,
                      .transpose_a = true,
                      .accumulate = true,
                      .lda = stride,
                      .ldb = p.n,
                      .ldc = p.ldc},
                     1.0f, panel, p.b + first * p.n + block.n_begin,
                     p.c + block.m_begin * p.ldc + block.n_begin);
  }
}

constexpr int64_t kEnoughTasks = 12;

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

void WeightGemm(Context::Impl& impl, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                const WeightOperand& b, const void* bias, float* c, int64_t ldc, bool accumulate) {
  if (m == 0) return;
  WeightProduct product{m, n, k, a, lda, b, bias, c, ldc, accumulate};
  if (impl.native_bf16 && b.dtype == DType::kBF16) {
    const OneThreadOpenMp confined;  // primitives are made for one thread
    NativeProduct(impl, product, Narrow(impl, Slot::kOperand, a, m, k, lda), b.data);
    return;
  }
  if (impl.rounds_to_fp16) {
    product.a = RoundedToFp16(impl, Slot::kOperand, a, m, k, lda);
    product.lda = k;
  }
  const BlockPlan plan = PlanBlocks(m, n);
  impl.Parallel(plan.num_tasks(), [&](int64_t task, int thread) {
    Fp32Block(product, BlockOf(plan, m, n, task), impl.thread_scratch(thread), impl.rounds_to_fp16);
  });
}

void OuterGemm(Context::Impl& impl, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
               float* c, int64_t ldc) {
  if (k == 0) return;
  if (impl.native_bf16) {
    const OneThreadOpenMp confined;
    Bf16* a_rows = impl.shared.Get<Bf16>(Slot::kOperand, m * k);
    // a^T, so that the source is row-major.
    impl.ParallelBlocks(m, 64, [&](int64_t begin, int64_t end) {
      kernels::NarrowTransposed(a + begin, k, end - begin, m, a_rows + begin * k);
    });
    const Bf16* narrow_b = Narrow(impl, Slot::kOtherOperand, b, k, n, n);
    const WeightProduct product{m, n, k, nullptr, 0, {.row_stride = n}, nullptr, c, ldc, true};
    NativeProduct(impl, product, a_rows, narrow_b);
    return;
  }
  OuterProduct product{m, n, k, a, b, c, ldc, impl.rounds_to_fp16};
  if (impl.rounds_to_fp16) product.b = RoundedToFp16(impl, Slot::kOtherOperand, b, k, n, n);
  const BlockPlan plan = PlanOuterBlocks(m, n);
  impl.Parallel(plan.num_tasks(), [&](int64_t task, int thread) {
    OuterBlock(product, BlockOf(plan, m, n, task), impl.thread_scratch(thread));
  });
}

}  // namespace forebay::cpu
