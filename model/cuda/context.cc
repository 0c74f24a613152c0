#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {
namespace {

constexpr char kMatmulPurpose[] = "matrix products";

}  // namespace

Context::~Context() {
  if (matmul_ == nullptr) return;
  matmul_.reset();
  budget_->Release(kMatmulPurpose, kMatmulWorkspaceBytes);
}

absl::StatusOr<std::unique_ptr<Context>> Context::Create(Device* device, Stream* stream,
                                                         MemoryBudget* budget,
                                                         const ContextOptions& options) {
  FOREBAY_CHECK(device->kind() == DeviceKind::kCuda);
  std::unique_ptr<Context> context(new Context(stream, budget, options));
  FOREBAY_ASSIGN_OR_RETURN(
      context->scratch_,
      DeviceAllocation::Create(budget, device, "compute scratch", options.scratch_bytes));
  FOREBAY_RETURN_IF_ERROR(budget->Charge(kMatmulPurpose, kMatmulWorkspaceBytes));
  auto matmul = GpuMatmul::Create(device, kMatmulWorkspaceBytes);
  if (!matmul.ok()) {
    budget->Release(kMatmulPurpose, kMatmulWorkspaceBytes);
    return matmul.status();
  }
  context->matmul_ = *std::move(matmul);
  return context;
}

}  // namespace forebay::cuda
