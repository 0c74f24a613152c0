#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

absl::StatusOr<std::unique_ptr<Context>> Context::Create(Device* device, Stream* stream,
                                                         const ContextOptions& options) {
  FOREBAY_CHECK(device->kind() == DeviceKind::kCuda);
  std::unique_ptr<Context> context(new Context(stream, options));
  FOREBAY_ASSIGN_OR_RETURN(context->matmul_, GpuMatmul::Create(device));
  FOREBAY_ASSIGN_OR_RETURN(context->scratch_, device->Allocate(options.scratch_bytes));
  return context;
}

}  // namespace forebay::cuda
