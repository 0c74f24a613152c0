// Linear layers: which matrix product each is.
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda/bias.h"
#include "forebay/model/cuda/linear_products.h"

namespace forebay::cuda {
namespace {

MatmulShape BaseShape(const Context& context, const Linear& linear) {
  FOREBAY_CHECK(linear.dtype == context.dtype());
  MatmulShape shape;
  shape.inputs = context.dtype();
  shape.output = context.dtype();
  shape.tf32 = context.tf32() && context.dtype() == DType::kF32;
  return shape;
}

MatmulShape Forward(const Context& context, const Linear& linear, int64_t tokens,
                    const LinearOutput& y) {
  MatmulShape shape = BaseShape(context, linear);
  shape.m = tokens;
  shape.n = linear.out;
  shape.k = linear.in;
  shape.transpose_b = !linear.in_out;
  shape.ldb = linear.row_stride;
  shape.ldd = y.stride;
  shape.output = y.dtype;
  shape.accumulate = y.accumulate;
  return shape;
}

MatmulShape BackwardInput(const Context& context, const Linear& linear, const LinearGradient& dy,
                          int64_t tokens) {
  MatmulShape shape = BaseShape(context, linear);
  shape.m = tokens;
  shape.n = linear.in;
  shape.k = linear.out;
  shape.transpose_b = linear.in_out;
  shape.lda = dy.stride;
  shape.ldb = linear.row_stride;
  return shape;
}

MatmulShape BackwardWeight(const Context& context, const Linear& linear, const LinearGradient& dy,
                           int64_t tokens) {
  MatmulShape shape = BaseShape(context, linear);
  shape.k = tokens;
  shape.transpose_a = true;
  shape.ldd = linear.row_stride;
  shape.output = DType::kF32;
  shape.accumulate = true;
  shape.m = linear.in_out ? linear.in : linear.out;
  shape.n = linear.in_out ? linear.out : linear.in;
  (linear.in_out ? shape.ldb : shape.lda) = dy.stride;
  return shape;
}

}  // namespace

absl::Status MultiplyForward(Context& context, const Linear& linear, const void* x, int64_t tokens,
                             const LinearOutput& y) {
  if (tokens == 0) return absl::OkStatus();
  return context.matmul().Multiply(Forward(context, linear, tokens, y), x, linear.weight, y.rows,
                                   context.stream(), linear.bias);
}

absl::Status MultiplyBackwardInput(Context& context, const Linear& linear, const LinearGradient& dy,
                                   int64_t tokens, void* dx, bool accumulate) {
  if (tokens == 0) return absl::OkStatus();
  MatmulShape shape = BackwardInput(context, linear, dy, tokens);
  shape.accumulate = accumulate;
  return context.matmul().Multiply(shape, dy.rows, linear.weight, dx, context.stream());
}

absl::Status MultiplyBackwardWeight(Context& context, const Linear& linear, const void* x,
                                    const LinearGradient& dy, int64_t tokens, float* dweight) {
  if (tokens == 0) return absl::OkStatus();
  const MatmulShape shape = BackwardWeight(context, linear, dy, tokens);
  const void* const a = linear.in_out ? x : dy.rows;
  const void* const b = linear.in_out ? dy.rows : x;
  return context.matmul().Multiply(shape, a, b, dweight, context.stream());
}

LinearProducts ProductsOf(const Context& context, const Linear& linear, int64_t tokens,
                          const LinearOutput& y, const LinearGradient& dy, const float* dweight) {
  const void* const aligned = nullptr;
  return {
      ProductOf(Forward(context, linear, tokens, y), aligned, linear.weight, aligned, linear.bias),
      ProductOf(BackwardInput(context, linear, dy, tokens), aligned, linear.weight, aligned,
                nullptr),
      ProductOf(BackwardWeight(context, linear, dy, tokens), aligned, aligned, dweight, nullptr)};
}

absl::Status LinearForward(Context& context, const Linear& linear, const void* x, int64_t tokens,
                           void* y, bool accumulate) {
  return MultiplyForward(context, linear, x, tokens,
                         {.rows = y, .dtype = context.dtype(), .accumulate = accumulate});
}

absl::Status LinearBackwardInput(Context& context, const Linear& linear, const void* dy,
                                 int64_t tokens, void* dx, bool accumulate) {
  return MultiplyBackwardInput(context, linear, {.rows = dy}, tokens, dx, accumulate);
}

absl::Status LinearBackwardWeight(Context& context, const Linear& linear, const void* x,
                                  const void* dy, int64_t tokens, float* dweight, float* dbias) {
  FOREBAY_RETURN_IF_ERROR(
      MultiplyBackwardWeight(context, linear, x, {.rows = dy}, tokens, dweight));
  if (dbias == nullptr) return absl::OkStatus();
  return AddBiasGradient(context, dy, tokens, linear.out, dbias);
}

}  // namespace forebay::cuda
