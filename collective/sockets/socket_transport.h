// Ranks connected by TCP: processes of one machine or of several, without MPI.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/collective/launch.h"
#include "forebay/collective/transport.h"

namespace forebay {

// Errors as of MeetRanks.
absl::StatusOr<std::unique_ptr<Transport>> ConnectSockets(const Launch& launch, double timeout_s);

}  // namespace forebay
