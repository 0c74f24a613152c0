#include "forebay/device/gpu_matmul_plan.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

int TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CublasLt::kF32;
    case DType::kBF16:
      return CublasLt::kBf16;
    case DType::kF16:
      return CublasLt::kF16;
  }
  return CublasLt::kF32;
}

absl::Status CheckShape(const MatmulShape& shape) {
  if (shape.m <= 0 || shape.n <= 0 || shape.k <= 0) {
    return UsageError(fmt::format("a product of [{}, {}] and [{}, {}]: sizes are above 0", shape.m,
                                  shape.k, shape.k, shape.n));
  }
  for (const Rows& matrix : {RowsOfA(shape), RowsOfB(shape), RowsOfD(shape)}) {
    if (matrix.stride >= matrix.columns) continue;
    return UsageError(
        fmt::format("a matrix of [{}, {}] with {} elements from row to row: its rows overlap",
                    matrix.rows, matrix.columns, matrix.stride));
  }
  if (shape.output != shape.inputs && shape.output != DType::kF32) {
    return UsageError(fmt::format("a product of {} gives {} or fp32, and {} is asked for",
                                  NameOf(shape.inputs), NameOf(shape.inputs),
                                  NameOf(shape.output)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCublasLt(int status, const char* call, const MatmulShape& shape) {
  if (status == CublasLt::kSuccess) return absl::OkStatus();
  return EnvironmentError(fmt::format(
      "{} failed with status {} for a product of [{}, {}] and [{}, {}] ({}). Look at 'nvidia-smi' "
      "and the version of cuBLASLt, or run without the GPU",
      call, status, shape.m, shape.k, shape.k, shape.n, NameOf(shape.inputs)));
}

absl::Status DescribeProduct(const MatmulProduct& product, int64_t workspace_bytes,
                             const void* bias, ProductPlan& plan) {
  const CublasLt* const library = plan.library;
  const MatmulShape& shape = product.shape;
  FOREBAY_RETURN_IF_ERROR(CheckShape(shape));
  const int compute = shape.tf32 ? CublasLt::kComputeTf32 : CublasLt::kComputeF32;
  FOREBAY_RETURN_IF_ERROR(
      CheckCublasLt(library->MatmulDescCreate(&plan.desc, compute, CublasLt::kF32),
                    "cublasLtMatmulDescCreate", shape));
  const auto set = [&](int attribute, const auto& value) {
    return CheckCublasLt(
        library->MatmulDescSetAttribute(plan.desc, attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute", shape);
  };
  const auto operation = [](bool transposed) {
    return transposed ? CublasLt::kTransposed : CublasLt::kPlain;
  };
  FOREBAY_RETURN_IF_ERROR(set(CublasLt::kTransposeA, operation(shape.transpose_b)));
  FOREBAY_RETURN_IF_ERROR(set(CublasLt::kTransposeB, operation(shape.transpose_a)));
  if (product.bias_alignment > 0) {
    // The library looks at what an address is aligned to.
    FOREBAY_RETURN_IF_ERROR(set(CublasLt::kEpilogue, CublasLt::kAddBias));
    FOREBAY_RETURN_IF_ERROR(set(CublasLt::kBiasPointer, bias));
  }
  const auto layout = [&](CublasLt::Layout& to, DType dtype, const Rows& matrix) {
    return CheckCublasLt(
        library->MatrixLayoutCreate(&to, TypeOf(dtype), static_cast<uint64_t>(matrix.columns),
                                    static_cast<uint64_t>(matrix.rows), matrix.stride),
        "cublasLtMatrixLayoutCreate", shape);
  };
  FOREBAY_RETURN_IF_ERROR(layout(plan.first, shape.inputs, RowsOfB(shape)));
  FOREBAY_RETURN_IF_ERROR(layout(plan.second, shape.inputs, RowsOfA(shape)));
  FOREBAY_RETURN_IF_ERROR(layout(plan.result, shape.output, RowsOfD(shape)));
  FOREBAY_RETURN_IF_ERROR(CheckCublasLt(library->MatmulPreferenceCreate(&plan.preference),
                                        "cublasLtMatmulPreferenceCreate", shape));
  const auto prefer = [&](int attribute, const auto& value) {
    return CheckCublasLt(
        library->MatmulPreferenceSetAttribute(plan.preference, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute", shape);
  };
  FOREBAY_RETURN_IF_ERROR(
      prefer(CublasLt::kMostWorkspaceBytes, static_cast<uint64_t>(workspace_bytes)));
  FOREBAY_RETURN_IF_ERROR(prefer(CublasLt::kReductionSchemes, CublasLt::kReduceInOrder));
  FOREBAY_RETURN_IF_ERROR(prefer(CublasLt::kAlignmentOfA, product.b_alignment));
  FOREBAY_RETURN_IF_ERROR(prefer(CublasLt::kAlignmentOfB, product.a_alignment));
  FOREBAY_RETURN_IF_ERROR(prefer(CublasLt::kAlignmentOfC, product.d_alignment));
  FOREBAY_RETURN_IF_ERROR(prefer(CublasLt::kAlignmentOfD, product.d_alignment));
  return absl::OkStatus();
}

}  // namespace forebay
