// How a store is shared out among disks that have less room than their share. Pure.
#pragma once

#include <cstdint>

#include "forebay/offload/machine_limits.h"
#include "forebay/swap/tiles/stripes.h"

namespace forebay {

// The space that a store takes on its disks.
struct SpaceNeeds {
  int64_t total_bytes = 0;           // in all folders together
  int64_t beside_exports_bytes = 0;  // on limits.out_file_system, beside the swap area
  // How far a folder may be off its share.
  int64_t slack_bytes = 0;
};
// The shares of `limits` but for disks whose free space is less than theirs: those get what they
// have room for, and the others the rest, in proportion. Empty: they have no room for it together.
// Requires: total_bytes > 0. Pure.
StripeWeights WithinRoom(const MachineLimits& limits, const SpaceNeeds& needs);

}  // namespace forebay
