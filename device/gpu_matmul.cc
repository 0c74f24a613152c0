#include "forebay/device/gpu_matmul.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/device/gpu_matmul_plan.h"

namespace forebay {
namespace {

uint32_t AlignmentOf(const void* address) {
  constexpr uintptr_t kMost = 16;  // what the fastest kernels ask for
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | kMost;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

}  // namespace

MatmulProduct ProductOf(const MatmulShape& shape, const void* a, const void* b, const void* d,
                        const void* bias) {
  MatmulProduct product = {.shape = shape,
                           .a_alignment = AlignmentOf(a),
                           .b_alignment = AlignmentOf(b),
                           .d_alignment = AlignmentOf(d),
                           .bias_alignment = bias != nullptr ? AlignmentOf(bias) : 0};
  product.shape.accumulate = false;
  return product;
}

GpuMatmul::GpuMatmul(Device* device, const CublasLt* library, CublasLt::Handle handle,
                     DeviceBuffer workspace)
    : device_(device), library_(library), handle_(handle), workspace_(std::move(workspace)) {}

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
  FOREBAY_RETURN_IF_ERROR(stream->Launch(
      [&](void*) { return CheckCublasLt(library->Create(&handle), "cublasLtCreate", {}); }));
  return std::unique_ptr<GpuMatmul>(new GpuMatmul(device, library, handle, std::move(workspace)));
}

std::string GpuMatmul::LibraryVersion() const {
  const size_t version = library_->GetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

absl::StatusOr<std::unique_ptr<GpuMatmul::Plan>> GpuMatmul::Describe(
    const MatmulProduct& product) const {
  auto plan = std::make_unique<Plan>(library_);
  FOREBAY_RETURN_IF_ERROR(DescribeProduct(product, workspace_.size_bytes(),
                                          workspace_.As<std::byte>() + product.bias_alignment,
                                          *plan));
  return plan;
}

absl::StatusOr<std::vector<CublasLt::Heuristic>> GpuMatmul::Guess(const MatmulProduct& product,
                                                                  const Plan& plan,
                                                                  int most) const {
  const MatmulShape& shape = product.shape;
  std::vector<CublasLt::Heuristic> found(static_cast<size_t>(most));
  int num_found = 0;
  const int status = library_->MatmulAlgoGetHeuristic(handle_, plan.desc, plan.first, plan.second,
                                                      plan.result, plan.result, plan.preference,
                                                      most, found.data(), &num_found);
  FOREBAY_RETURN_IF_ERROR(CheckCublasLt(status, "cublasLtMatmulAlgoGetHeuristic", shape));
  found.resize(static_cast<size_t>(num_found));
  std::erase_if(found, [](const auto& guess) { return guess.status != CublasLt::kSuccess; });
  if (!found.empty()) return found;
  return EnvironmentError(fmt::format(
      "cuBLASLt has no algorithm for a product of [{}, {}] and [{}, {}] ({}) on this GPU. A card "
      "of compute capability 7.5 has none of bf16: use fp16",
      shape.m, shape.k, shape.k, shape.n, NameOf(shape.inputs)));
}

absl::StatusOr<GpuMatmul::Plan*> GpuMatmul::PlanFor(const MatmulProduct& product) {
  if (const auto it = plans_.find(product); it != plans_.end()) return it->second.get();
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Describe(product));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<CublasLt::Heuristic> guesses,
                           Guess(product, *plan, 1));
  plan->algorithm = guesses.front().algorithm;
  return plans_.emplace(product, std::move(plan)).first->second.get();
}

absl::Status GpuMatmul::Enqueue(const MatmulShape& shape, Plan& plan, const Operands& operands,
                                Stream& stream, void* native_stream) const {
  const void* const bias = operands.bias;
  if (bias != nullptr) {
    FOREBAY_RETURN_IF_ERROR(CheckCublasLt(
        library_->MatmulDescSetAttribute(plan.desc, CublasLt::kBiasPointer, &bias, sizeof(bias)),
        "cublasLtMatmulDescSetAttribute", shape));
  }
  const float alpha = 1;
  const float beta = shape.accumulate ? 1 : 0;
  const int status = library_->Matmul(
      handle_, plan.desc, &alpha, operands.b, plan.first, operands.a, plan.second, &beta,
      operands.d, plan.result, operands.d, plan.result, &plan.algorithm, workspace_.address(),
      static_cast<size_t>(workspace_.size_bytes()), native_stream);
  // Where the GPU is lost, CUDA says so, and what to do; the library does not.
  if (status != CublasLt::kSuccess) FOREBAY_RETURN_IF_ERROR(stream.Await());
  return CheckCublasLt(status, "cublasLtMatmul", shape);
}

absl::Status GpuMatmul::Multiply(const MatmulShape& shape, const void* a, const void* b, void* d,
                                 Stream& stream, const void* bias) {
  return stream.Launch([&](void* native_stream) -> absl::Status {
    const std::lock_guard lock(mutex_);  // also of the bias, which a plan has one of
    FOREBAY_ASSIGN_OR_RETURN(Plan* const plan, PlanFor(ProductOf(shape, a, b, d, bias)));
    return Enqueue(shape, *plan, {a, b, d, bias}, stream, native_stream);
  });
}

}  // namespace forebay
