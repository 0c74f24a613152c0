// This build has no CUDA code.
#include "forebay/base/errors.h"
#include "forebay/collective/nccl/nccl.h"
#include "forebay/collective/nccl/nccl_transport.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<DeviceTransport>> ConnectNccl(Transport&, Device&, double) {
  return EnvironmentError("this forebay was built without CUDA");
}

absl::StatusOr<std::string> NcclFile() {
  return EnvironmentError("this forebay was built without CUDA");
}

}  // namespace forebay
