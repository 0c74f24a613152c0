#include "forebay/device/gpu_matmul.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

absl::Status Check(int status, const char* call, const MatmulShape& shape) {
  if (status == CublasLt::kSuccess) return absl::OkStatus();
  return EnvironmentError(fmt::format(
      "{} failed with status {} for a product of [{}, {}] and [{}, {}] ({}). Look at 'nvidia-smi' "
      "and the version of cuBLASLt, or run without the GPU",
      call, status, shape.m, shape.k, shape.k, shape.n, NameOf(shape.inputs)));
}

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
  if (shape.output != shape.inputs && shape.output != DType::kF32) {
    return UsageError(fmt::format("a product of {} gives {} or fp32, and {} is asked for",
                                  NameOf(shape.inputs), NameOf(shape.inputs),
                                  NameOf(shape.output)));
  }
  return absl::OkStatus();
}

}  // namespace

// The library's matrices are column-major: a row-major [rows, columns] is its [columns, rows]. So
// d = op(a) op(b) is, to it, d' = op(b)' op(a)': b comes first.
struct GpuMatmul::Plan {
  explicit Plan(const CublasLt* of) : library(of) {}
  ~Plan() {
    if (desc != nullptr) library->MatmulDescDestroy(desc);
    for (const CublasLt::Layout layout : {first, second, result}) {
      if (layout != nullptr) library->MatrixLayoutDestroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const CublasLt* const library;
  CublasLt::MatmulDesc desc = nullptr;
  CublasLt::Layout first = nullptr;
  CublasLt::Layout second = nullptr;
  CublasLt::Layout result = nullptr;
  CublasLt::Heuristic chosen = {};
};

GpuMatmul::GpuMatmul(const CublasLt* library, CublasLt::Handle handle, DeviceBuffer workspace)
    : library_(library), handle_(handle), workspace_(std::move(workspace)) {}

GpuMatmul::~GpuMatmul() {
  plans_.clear();
  library_->Destroy(handle_);
}

absl::StatusOr<std::unique_ptr<GpuMatmul>> GpuMatmul::Create(Device* device,
                                                             int64_t workspace_bytes) {
  FOREBAY_ASSIGN_OR_RETURN(const CublasLt* const library, LoadCublasLt());
  FOREBAY_ASSIGN_OR_RETURN(DeviceBuffer workspace, device->Allocate(workspace_bytes));
  CublasLt::Handle handle = nullptr;
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream());
  // On the device, which the handle belongs to.
  FOREBAY_RETURN_IF_ERROR(
      stream->Launch([&](void*) { return Check(library->Create(&handle), "cublasLtCreate", {}); }));
  return std::unique_ptr<GpuMatmul>(new GpuMatmul(library, handle, std::move(workspace)));
}

absl::Status GpuMatmul::Describe(const MatmulShape& shape, Plan& plan) const {
  const int compute = shape.tf32 ? CublasLt::kComputeTf32 : CublasLt::kComputeF32;
  FOREBAY_RETURN_IF_ERROR(Check(library_->MatmulDescCreate(&plan.desc, compute, CublasLt::kF32),
                                "cublasLtMatmulDescCreate", shape));
  const auto set = [&](int attribute, bool transposed) {
    const int32_t operation = transposed ? CublasLt::kTransposed : CublasLt::kPlain;
    return Check(
        library_->MatmulDescSetAttribute(plan.desc, attribute, &operation, sizeof(operation)),
        "cublasLtMatmulDescSetAttribute", shape);
  };
  FOREBAY_RETURN_IF_ERROR(set(CublasLt::kTransposeA, shape.transpose_b));
  FOREBAY_RETURN_IF_ERROR(set(CublasLt::kTransposeB, shape.transpose_a));
  const auto layout = [&](CublasLt::Layout& to, DType dtype, int64_t rows, int64_t columns) {
    return Check(library_->MatrixLayoutCreate(&to, TypeOf(dtype), static_cast<uint64_t>(columns),
                                              static_cast<uint64_t>(rows), columns),
                 "cublasLtMatrixLayoutCreate", shape);
  };
  const auto operand = [&](CublasLt::Layout& to, int64_t rows, int64_t columns, bool transposed) {
    return transposed ? layout(to, shape.inputs, columns, rows)
                      : layout(to, shape.inputs, rows, columns);
  };
  FOREBAY_RETURN_IF_ERROR(operand(plan.first, shape.k, shape.n, shape.transpose_b));
  FOREBAY_RETURN_IF_ERROR(operand(plan.second, shape.m, shape.k, shape.transpose_a));
  return layout(plan.result, shape.output, shape.m, shape.n);
}

absl::StatusOr<const GpuMatmul::Plan*> GpuMatmul::PlanFor(const MatmulShape& shape) {
  const std::lock_guard lock(mutex_);
  if (const auto it = plans_.find(shape); it != plans_.end()) return it->second.get();
  FOREBAY_RETURN_IF_ERROR(CheckShape(shape));
  auto plan = std::make_unique<Plan>(library_);
  FOREBAY_RETURN_IF_ERROR(Describe(shape, *plan));
  CublasLt::Preference preference = nullptr;
  FOREBAY_RETURN_IF_ERROR(Check(library_->MatmulPreferenceCreate(&preference),
                                "cublasLtMatmulPreferenceCreate", shape));
  const auto workspace_bytes = static_cast<uint64_t>(workspace_.size_bytes());
  const uint32_t schemes = CublasLt::kReduceInOrder;
  int status = library_->MatmulPreferenceSetAttribute(preference, CublasLt::kMostWorkspaceBytes,
                                                      &workspace_bytes, sizeof(workspace_bytes));
  if (status == CublasLt::kSuccess) {
    status = library_->MatmulPreferenceSetAttribute(preference, CublasLt::kReductionSchemes,
                                                    &schemes, sizeof(schemes));
  }
  int num_found = 0;
  if (status == CublasLt::kSuccess) {
    status = library_->MatmulAlgoGetHeuristic(handle_, plan->desc, plan->first, plan->second,
                                              plan->result, plan->result, preference, 1,
                                              &plan->chosen, &num_found);
  }
  library_->MatmulPreferenceDestroy(preference);
  FOREBAY_RETURN_IF_ERROR(Check(status, "cublasLtMatmulAlgoGetHeuristic", shape));
  if (num_found == 0) {
    return EnvironmentError(fmt::format(
        "cuBLASLt has no algorithm for a product of [{}, {}] and [{}, {}] ({}) on this GPU. A card "
        "of compute capability 7.5 has none of bf16: use fp16",
        shape.m, shape.k, shape.k, shape.n, NameOf(shape.inputs)));
  }
  return plans_.emplace(shape, std::move(plan)).first->second.get();
}

absl::Status GpuMatmul::Multiply(const MatmulShape& shape, const void* a, const void* b, void* d,
                                 Stream& stream) {
  return stream.Launch([&](void* native_stream) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const Plan* const plan, PlanFor(shape));
    const float alpha = 1;
    const float beta = shape.accumulate ? 1 : 0;
    return Check(library_->Matmul(handle_, plan->desc, &alpha, b, plan->first, a, plan->second,
                                  &beta, d, plan->result, d, plan->result, &plan->chosen.algorithm,
                                  workspace_.address(),
                                  static_cast<size_t>(workspace_.size_bytes()), native_stream),
                 "cublasLtMatmul", shape);
  });
}

}  // namespace forebay
