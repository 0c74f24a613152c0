// Linear layers and logits: which matrix product each is, and the direct path for the few rows of
// generation.
#include "forebay/base/check.h"
#include "forebay/model/cpu/gemm.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {
namespace {

// Up to this many rows a product reads weights faster than it multiplies, so they are used as
// stored.
constexpr int64_t kDirectRows = kernels::kMaxDirectRows;
constexpr int64_t kDirectBlock = 64;  // outputs of one task
constexpr int64_t kBiasBlockRows = 64;

int64_t StoredRowStride(const Linear& linear) {
  if (linear.row_stride != 0) return linear.row_stride;
  return linear.in_out ? linear.out : linear.in;
}

void DirectForward(Context::Impl& impl, const Linear& linear, const float* x, int64_t tokens,
                   float* y, bool accumulate) {
  if (impl.rounds_to_fp16) {
    float* const rounded = impl.shared.Get<float>(Slot::kOperand, tokens * linear.in);
    kernels::RoundToFp16(x, tokens * linear.in, rounded);
    x = rounded;
  }
  const kernels::DirectProduct product{.dtype = linear.dtype,
                                       .weight = linear.weight,
                                       .row_stride = StoredRowStride(linear),
                                       .bias = linear.bias,
                                       .in = linear.in,
                                       .out = linear.out,
                                       .x = x,
                                       .num_rows = tokens,
                                       .y = y,
                                       .accumulate = accumulate,
                                       .rounds_to_fp16 = impl.rounds_to_fp16};
  impl.ParallelBlocks(linear.out, kDirectBlock, [&](int64_t begin, int64_t end) {
    if (linear.in_out) {
      kernels::DirectColumns(product, begin, end);
    } else {
      kernels::DirectRows(product, begin, end);
    }
  });
}

// dbias [out] += column sums of dy: blocks of rows summed each in order, then block by block.
void AddColumnSums(Context::Impl& impl, const float* dy, int64_t rows, int64_t out, float* dbias) {
  constexpr int64_t kColumns = 256;
  impl.ParallelBlocks(out, kColumns, [&](int64_t begin, int64_t end) {
    float sums[kColumns];
    for (int64_t block = 0; block < rows; block += kBiasBlockRows) {
      const int64_t block_end = block + kBiasBlockRows < rows ? block + kBiasBlockRows : rows;
      for (int64_t i = 0; i < end - begin; ++i) sums[i] = 0;
      for (int64_t row = block; row < block_end; ++row) {
        kernels::Add(dy + row * out + begin, end - begin, sums);
      }
      kernels::Add(sums, end - begin, dbias + begin);
    }
  });
}

}  // namespace

void LinearForward(Context& context, const Linear& linear, const float* x, int64_t tokens, float* y,
                   bool accumulate) {
  if (tokens == 0) return;
  if (tokens <= kDirectRows) {
    DirectForward(context.impl(), linear, x, tokens, y, accumulate);
    return;
  }
  WeightGemm(context.impl(), tokens, linear.out, linear.in, x, linear.in,
             {.dtype = linear.dtype,
              .data = linear.weight,
              .row_stride = StoredRowStride(linear),
              .transposed = !linear.in_out},
             linear.bias, y, linear.out, accumulate);
}

void LinearBackwardInput(Context& context, const Linear& linear, const float* dy, int64_t tokens,
                         float* dx, bool accumulate) {
  WeightGemm(context.impl(), tokens, linear.in, linear.out, dy, linear.out,
             {.dtype = linear.dtype,
              .data = linear.weight,
              .row_stride = StoredRowStride(linear),
              .transposed = linear.in_out},
             nullptr, dx, linear.in, accumulate);
}

void LinearBackwardWeight(Context& context, const Linear& linear, const float* x, const float* dy,
                          int64_t tokens, float* dweight, float* dbias) {
  Context::Impl& impl = context.impl();
  const int64_t row_stride = StoredRowStride(linear);
  if (linear.in_out) {
    OuterGemm(impl, linear.in, linear.out, tokens, x, dy, dweight, row_stride);
  } else {
    OuterGemm(impl, linear.out, linear.in, tokens, dy, x, dweight, row_stride);
  }
  if (dbias != nullptr) AddColumnSums(impl, dy, tokens, linear.out, dbias);
}

void Logits(Context& context, const Linear& head, const float* x, int64_t rows, float* logits) {
  LinearForward(context, head, x, rows, logits);
}

}  // namespace forebay::cpu
