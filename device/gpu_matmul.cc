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

// The stored rows of a matrix, and the elements from one to the next.
struct Rows {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};
Rows RowsOf(int64_t rows, int64_t columns, bool transposed, int64_t stride) {
  if (transposed) std::swap(rows, columns);
  return {rows, columns, stride == 0 ? columns : stride};
}
Rows RowsOfA(const MatmulShape& shape) {
  return RowsOf(shape.m, shape.k, shape.transpose_a, shape.lda);
}
Rows RowsOfB(const MatmulShape& shape) {
  return RowsOf(shape.k, shape.n, shape.transpose_b, shape.ldb);
}
Rows RowsOfD(const MatmulShape& shape) {
  return RowsOf(shape.m, shape.n, false, shape.ldd);
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

uint32_t AlignmentOf(const void* address) {
  constexpr uintptr_t kMost = 16;  // what the fastest kernels ask for
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | kMost;
  return static_cast<uint32_t>(bits & (~bits + 1));
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

absl::Status GpuMatmul::Describe(const PlanKey& key, const void* bias, Plan& plan) const {
  const MatmulShape& shape = key.shape;
  const int compute = shape.tf32 ? CublasLt::kComputeTf32 : CublasLt::kComputeF32;
  FOREBAY_RETURN_IF_ERROR(Check(library_->MatmulDescCreate(&plan.desc, compute, CublasLt::kF32),
                                "cublasLtMatmulDescCreate", shape));
  const auto set = [&](int attribute, const auto& value) {
    return Check(library_->MatmulDescSetAttribute(plan.desc, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute", shape);
  };
  const auto operation = [](bool transposed) {
    return transposed ? CublasLt::kTransposed : CublasLt::kPlain;
  };
  FOREBAY_RETURN_IF_ERROR(set(CublasLt::kTransposeA, operation(shape.transpose_b)));
  FOREBAY_RETURN_IF_ERROR(set(CublasLt::kTransposeB, operation(shape.transpose_a)));
  if (key.has_bias) {
    FOREBAY_RETURN_IF_ERROR(set(CublasLt::kEpilogue, CublasLt::kAddBias));
    FOREBAY_RETURN_IF_ERROR(set(CublasLt::kBiasPointer, bias));
  }
  const auto layout = [&](CublasLt::Layout& to, DType dtype, const Rows& matrix) {
    return Check(
        library_->MatrixLayoutCreate(&to, TypeOf(dtype), static_cast<uint64_t>(matrix.columns),
                                     static_cast<uint64_t>(matrix.rows), matrix.stride),
        "cublasLtMatrixLayoutCreate", shape);
  };
  FOREBAY_RETURN_IF_ERROR(layout(plan.first, shape.inputs, RowsOfB(shape)));
  FOREBAY_RETURN_IF_ERROR(layout(plan.second, shape.inputs, RowsOfA(shape)));
  return layout(plan.result, shape.output, RowsOfD(shape));
}

absl::Status GpuMatmul::Choose(const PlanKey& key, Plan& plan) const {
  const MatmulShape& shape = key.shape;
  CublasLt::Preference preference = nullptr;
  FOREBAY_RETURN_IF_ERROR(Check(library_->MatmulPreferenceCreate(&preference),
                                "cublasLtMatmulPreferenceCreate", shape));
  int status = CublasLt::kSuccess;
  const auto prefer = [&](int attribute, const auto& value) {
    if (status != CublasLt::kSuccess) return;
    status = library_->MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
  };
  prefer(CublasLt::kMostWorkspaceBytes, static_cast<uint64_t>(workspace_.size_bytes()));
  prefer(CublasLt::kReductionSchemes, CublasLt::kReduceInOrder);
  prefer(CublasLt::kAlignmentOfA, key.b_alignment);
  prefer(CublasLt::kAlignmentOfB, key.a_alignment);
  prefer(CublasLt::kAlignmentOfC, key.d_alignment);
  prefer(CublasLt::kAlignmentOfD, key.d_alignment);
  int num_found = 0;
  if (status == CublasLt::kSuccess) {
    status =
        library_->MatmulAlgoGetHeuristic(handle_, plan.desc, plan.first, plan.second, plan.result,
                                         plan.result, preference, 1, &plan.chosen, &num_found);
  }
  library_->MatmulPreferenceDestroy(preference);
  FOREBAY_RETURN_IF_ERROR(Check(status, "cublasLtMatmulAlgoGetHeuristic", shape));
  if (num_found == 0) {
    return EnvironmentError(fmt::format(
        "cuBLASLt has no algorithm for a product of [{}, {}] and [{}, {}] ({}) on this GPU. A card "
        "of compute capability 7.5 has none of bf16: use fp16",
        shape.m, shape.k, shape.k, shape.n, NameOf(shape.inputs)));
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuMatmul::Plan*> GpuMatmul::PlanFor(const PlanKey& key, const void* bias) {
  if (const auto it = plans_.find(key); it != plans_.end()) return it->second.get();
  FOREBAY_RETURN_IF_ERROR(CheckShape(key.shape));
  auto plan = std::make_unique<Plan>(library_);
  FOREBAY_RETURN_IF_ERROR(Describe(key, bias, *plan));
  FOREBAY_RETURN_IF_ERROR(Choose(key, *plan));
  return plans_.emplace(key, std::move(plan)).first->second.get();
}

absl::Status GpuMatmul::Multiply(const MatmulShape& shape, const void* a, const void* b, void* d,
                                 Stream& stream, const void* bias) {
  return stream.Launch([&](void* native_stream) -> absl::Status {
    const PlanKey key = {.shape = shape,
                         .a_alignment = AlignmentOf(a),
                         .b_alignment = AlignmentOf(b),
                         .d_alignment = AlignmentOf(d),
                         .has_bias = bias != nullptr};
    const std::lock_guard lock(mutex_);  // also of the bias, which a plan has one of
    FOREBAY_ASSIGN_OR_RETURN(Plan* const plan, PlanFor(key, bias));
    if (bias != nullptr) {
      FOREBAY_RETURN_IF_ERROR(Check(
          library_->MatmulDescSetAttribute(plan->desc, CublasLt::kBiasPointer, &bias, sizeof(bias)),
          "cublasLtMatmulDescSetAttribute", shape));
    }
    const float alpha = 1;
    const float beta = shape.accumulate ? 1 : 0;
    const int status = library_->Matmul(
        handle_, plan->desc, &alpha, b, plan->first, a, plan->second, &beta, d, plan->result, d,
        plan->result, &plan->chosen.algorithm, workspace_.address(),
        static_cast<size_t>(workspace_.size_bytes()), native_stream);
    // Where the GPU is lost, CUDA says so, and what to do; the library does not.
    if (status != CublasLt::kSuccess) FOREBAY_RETURN_IF_ERROR(stream.Await());
    return Check(status, "cublasLtMatmul", shape);
  });
}

}  // namespace forebay
