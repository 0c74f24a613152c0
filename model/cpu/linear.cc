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

WeightOperand Weights(const Linear& linear, bool transposed) {
  return {.dtype = linear.dtype,
          .data = linear.weight,
          .row_stride = StoredRowStride(linear),
          .transposed = transposed};
}

void InputGradient(Context::Impl& impl, const Linear& linear, const Operand& dy, int64_t tokens,
                   float* dx, bool accumulate) {
  WeightGemm(impl, tokens, linear.in, linear.out, dy, Weights(linear, linear.in_out), nullptr, dx,
             linear.in, accumulate);
}

void AddWeightGradient(Context::Impl& impl, const LinearGradient& gradient, const Operand& x,
                       const Operand& dy, int64_t tokens) {
  const Linear& linear = gradient.linear;
  const int64_t row_stride = StoredRowStride(linear);
  if (linear.in_out) {
    OuterGemm(impl, linear.in, linear.out, tokens, x, dy, gradient.dweight, row_stride);
  } else {
    OuterGemm(impl, linear.out, linear.in, tokens, dy, x, gradient.dweight, row_stride);
  }
  if (gradient.dbias != nullptr) {
    AddColumnSums(impl, gradient.dy, tokens, linear.out, gradient.dbias);
  }
}

}  // namespace

void LinearForward(Context& context, std::span<const LinearOutput> outputs, const float* x,
                   int64_t tokens, bool accumulate) {
  if (tokens == 0) return;
  Context::Impl& impl = context.impl();
  if (tokens <= kDirectRows) {
    for (const LinearOutput& output : outputs) {
      DirectForward(impl, output.linear, x, tokens, output.y, accumulate);
    }
    return;
  }
  const int64_t in = outputs.front().linear.in;
  const Operand operand = MakeOperand(impl, Slot::kOperand, x, tokens, in, in);
  for (const auto& [linear, y] : outputs) {
    FOREBAY_CHECK(linear.in == in);
    WeightGemm(impl, tokens, linear.out, in, operand, Weights(linear, !linear.in_out), linear.bias,
               y, linear.out, accumulate);
  }
}

void LinearForward(Context& context, const Linear& linear, const float* x, int64_t tokens, float* y,
                   bool accumulate) {
  const LinearOutput output{linear, y};
  LinearForward(context, {&output, 1}, x, tokens, accumulate);
}

void LinearBackward(Context& context, std::span<const LinearGradient> gradients, const float* x,
                    int64_t tokens, float* dx) {
  if (tokens == 0) return;
  Context::Impl& impl = context.impl();
  const int64_t in = gradients.front().linear.in;
  const Operand input = MakeOperand(impl, Slot::kOtherOperand, x, tokens, in, in);
  for (const LinearGradient& gradient : gradients) {
    const Linear& linear = gradient.linear;
    FOREBAY_CHECK(linear.in == in);
    const Operand dy =
        MakeOperand(impl, Slot::kOperand, gradient.dy, tokens, linear.out, linear.out);
    AddWeightGradient(impl, gradient, input, dy, tokens);
    InputGradient(impl, linear, dy, tokens, dx, &gradient != &gradients.front());
  }
}

void LinearBackwardInput(Context& context, const Linear& linear, const float* dy, int64_t tokens,
                         float* dx, bool accumulate) {
  Context::Impl& impl = context.impl();
  InputGradient(impl, linear, MakeOperand(impl, Slot::kOperand, dy, tokens, linear.out, linear.out),
                tokens, dx, accumulate);
}

void LinearBackwardWeight(Context& context, const Linear& linear, const float* x, const float* dy,
                          int64_t tokens, float* dweight, float* dbias) {
  Context::Impl& impl = context.impl();
  AddWeightGradient(impl, {linear, dy, dweight, dbias},
                    MakeOperand(impl, Slot::kOtherOperand, x, tokens, linear.in, linear.in),
                    MakeOperand(impl, Slot::kOperand, dy, tokens, linear.out, linear.out), tokens);
}

void Logits(Context& context, const Linear& head, const float* x, int64_t rows, float* logits) {
  LinearForward(context, head, x, rows, logits);
}

}  // namespace forebay::cpu
