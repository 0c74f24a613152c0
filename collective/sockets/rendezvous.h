// How the processes of a job find each other: rank 0 listens where the launcher said, the others
// come to it, and it tells all where all are. Each pair of ranks has two connections: one for data,
// and one for what has to be heard while data does not flow.
//
// Any program that reaches the port may say that it is a rank: networks of such runs are trusted,
// as with MPI, NCCL and PyTorch. Where MASTER_ADDR is localhost, other machines cannot reach it.
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
};

// [size]; of the own rank the host alone. Requires: launch.size > 1, transport kSockets.
// EnvironmentError: ranks that did not come within `timeout_s` (named), no port to be had, an
// address that is not known. UsageError: rank 0 counts other ranks, or has this one already.
absl::StatusOr<std::vector<RankConnection>> MeetRanks(const Launch& launch, double timeout_s);

}  // namespace forebay
