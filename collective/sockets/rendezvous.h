// How the processes of a job find each other: rank 0 listens where the launcher said, the others
// come to it, and it tells all where all are. Each pair of ranks has two connections: one for data,
// and one for what has to be heard while data does not flow.
//
// Whoever is no rank of the job is dropped, and delays nobody (handshake.h says how ranks prove
// that they are, door.h how strangers are kept apart). Nobody listens any more when all have met.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/file.h"
#include "forebay/collective/launch.h"

namespace forebay {

struct RankConnection {
  UniqueFd data;
  UniqueFd control;
  std::string host;
  bool is_of_other_machine = false;  // by the addresses of both ends
};

// [size]; of the own rank the host alone. Requires: launch.size > 1, transport kSockets.
// EnvironmentError: ranks that did not come within `timeout_s` (named), no port to be had, an
// address that is not known or not of this machine. UsageError: rank 0 counts other ranks, or has
// this one already.
absl::StatusOr<std::vector<RankConnection>> MeetRanks(const Launch& launch, double timeout_s);

}  // namespace forebay
