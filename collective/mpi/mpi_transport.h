// Ranks that mpirun started, over whatever network its MPI knows.
//
// MPI itself ends all ranks when one is killed, before they find out: what is told here is what
// hangs, and what a rank says of itself.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/collective/launch.h"
#include "forebay/collective/transport.h"

namespace forebay {

// Requires: launch.transport is kOpenMpi or kMpich. EnvironmentError: no plugin, or the MPI does
// not start.
absl::StatusOr<std::unique_ptr<Transport>> ConnectMpi(const Launch& launch);

}  // namespace forebay
