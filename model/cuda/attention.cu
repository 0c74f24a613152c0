#include "forebay/model/cuda/attention.h"

#include <cmath>
#include <string>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/cuda_error.h"
#include "forebay/model/cuda/attention_backward.h"
#include "forebay/model/cuda/attention_scratch.h"

namespace forebay::cuda {
namespace {

using attention::AttentionGradients;
using attention::AttentionInputs;
using attention::AttentionResults;

AttentionInputs AttentionInputsOf(const AttentionShape& shape, const void* q, const void* k,
                                  const void* v) {
  FOREBAY_CHECK(shape.tokens >= 0 && shape.tokens < int64_t{1} << 30);
  FOREBAY_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0 && shape.heads < 1 << 16);
  FOREBAY_CHECK(shape.head_dim > 0 && shape.head_dim <= 256 && shape.head_dim % 2 == 0);
  const bool sees_all = shape.window <= 0 || shape.window > shape.tokens;
  return {.tokens = static_cast<int>(shape.tokens),
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .window = static_cast<int>(sees_all ? shape.tokens : shape.window),
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
          .segment_begin = shape.segment_begin,
          .segment_end = shape.segment_end,
          .q = q,
          .k = k,
          .v = v};
}

absl::Status AttentionStatus(cudaError_t error, const AttentionInputs& in) {
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaError("launching attention of " + std::to_string(in.tokens) + " tokens, " +
                       std::to_string(in.heads) + " heads of " + std::to_string(in.head_dim),
                   error);
}

// Tensor cores' kernels read 16 bytes of a row at a time if its length is a multiple of that, else
// two elements.
bool AreAlignedForTensorCores(const AttentionInputs& in, const void* d_o) {
  uintptr_t bits = 0;
  for (const void* const matrix : {in.q, in.k, in.v, d_o}) {
    bits |= reinterpret_cast<uintptr_t>(matrix);
  }
  return bits % (in.head_dim % 8 == 0 ? 16 : 4) == 0;
}

// `d_o`: nullptr in the forward pass.
absl::StatusOr<AttentionUnits> AttentionUnitsFor(Context& context, const AttentionInputs& in,
                                                 const void* d_o) {
  if (context.dtype() == DType::kF32 || !AreAlignedForTensorCores(in, d_o)) {
    return AttentionUnits::kSimt;
  }
  int major = 0;
  FOREBAY_RETURN_IF_ERROR(context.stream().Launch([&](void* /*stream*/) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    }
    return AttentionStatus(error, in);
  }));
  return major >= 8 ? AttentionUnits::kTensorCores : AttentionUnits::kSimt;
}

}  // namespace

absl::Status AttentionForwardOn(AttentionUnits units, Context& context, const AttentionShape& shape,
                                const void* q, const void* k, const void* v, void* o,
                                float* log_sum_exp) {
  const AttentionInputs in = AttentionInputsOf(shape, q, k, v);
  const AttentionResults out = {o, log_sum_exp};
  if (in.tokens == 0) return absl::OkStatus();
  FOREBAY_CHECK(units == AttentionUnits::kSimt || AreAlignedForTensorCores(in, nullptr));
  const DType dtype = context.dtype();
  return context.stream().Launch([&](void* native_stream) {
    const auto stream = static_cast<cudaStream_t>(native_stream);
    return AttentionStatus(
        units == AttentionUnits::kTensorCores
            ? attention::LaunchTensorForward(dtype == DType::kF16, in, out, stream)
            : attention::LaunchSimtForward(dtype, in, out, stream),
        in);
  });
}

absl::Status AttentionForward(Context& context, const AttentionShape& shape, const void* q,
                              const void* k, const void* v, void* o, float* log_sum_exp) {
  FOREBAY_ASSIGN_OR_RETURN(const AttentionUnits units,
                           AttentionUnitsFor(context, AttentionInputsOf(shape, q, k, v), nullptr));
  return AttentionForwardOn(units, context, shape, q, k, v, o, log_sum_exp);
}

absl::Status AttentionBackwardOn(AttentionUnits units, Context& context,
                                 const AttentionShape& shape, const void* q, const void* k,
                                 const void* v, const void* o, const float* log_sum_exp,
                                 const void* d_o, void* dq, void* dk, void* dv) {
  const AttentionInputs in = AttentionInputsOf(shape, q, k, v);
  if (in.tokens == 0) return absl::OkStatus();
  FOREBAY_CHECK(units == AttentionUnits::kSimt || AreAlignedForTensorCores(in, d_o));
  FOREBAY_CHECK(context.scratch().size_bytes() >= AttentionScratchBytes(in.tokens, in.heads));
  auto* const output_dots = reinterpret_cast<float*>(context.scratch().address());
  const AttentionGradients gradients = {d_o, log_sum_exp, output_dots, dq, dk, dv};
  const DType dtype = context.dtype();
  return context.stream().Launch([&](void* native_stream) {
    const auto stream = static_cast<cudaStream_t>(native_stream);
    const cudaError_t error = attention::LaunchOutputDots(dtype, in, o, d_o, output_dots, stream);
    if (error != cudaSuccess) return AttentionStatus(error, in);
    return AttentionStatus(
        units == AttentionUnits::kTensorCores
            ? attention::LaunchTensorBackward(dtype == DType::kF16, in, gradients, stream)
            : attention::LaunchSimtBackward(dtype, in, gradients, stream),
        in);
  });
}

absl::Status AttentionBackward(Context& context, const AttentionShape& shape, const void* q,
                               const void* k, const void* v, const void* o,
                               const float* log_sum_exp, const void* d_o, void* dq, void* dk,
                               void* dv) {
  FOREBAY_ASSIGN_OR_RETURN(const AttentionUnits units,
                           AttentionUnitsFor(context, AttentionInputsOf(shape, q, k, v), d_o));
  return AttentionBackwardOn(units, context, shape, q, k, v, o, log_sum_exp, d_o, dq, dk, dv);
}

}  // namespace forebay::cuda
