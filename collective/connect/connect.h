// A Communicator for this process, over whatever connects it with its ranks.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/launch.h"

namespace forebay {

// Waits for the other ranks, `options.timeout_s` at most. EnvironmentError: a rank did not come
// (the message names it), its address cannot be reached, the MPI that started this process is not
// to be had. UsageError: ranks that do not belong together. The errors of ReadJobSecret, for ranks
// that talk over TCP.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectRanks(const Launch& launch,
                                                           const CommunicatorOptions& options);

}  // namespace forebay
