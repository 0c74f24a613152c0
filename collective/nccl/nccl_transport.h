// Device memory from GPU to GPU by NCCL. It moves bytes alone: sums are taken here, in the order of
// the ranks, which NCCL's own reductions do not promise.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/collective/transport.h"
#include "forebay/device/device.h"

namespace forebay {

// Every rank calls it at the same time, and gets the same answer: NCCL, or an EnvironmentError that
// says which rank cannot have it and why. `device` must outlive what is given; `transport` carries
// what the ranks have to agree on.
absl::StatusOr<std::unique_ptr<DeviceTransport>> ConnectNccl(Transport& transport, Device& device,
                                                             double timeout_s);

}  // namespace forebay
