// How much of a run's state each folder of --nvme gets, when the run starts; from then on the store
// says so itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/aio/speed_probe.h"
#include "forebay/swap/tiles/stripes.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/ask_machine.h"
#include "forebay/train/plan/disk_profile.h"

namespace forebay {

struct StripeShares {
  StripeWeights weights;  // by folder
  // "--set=nvme_weights", "--bench", "measured: 2.10 and 1.00 GB/s" or "not measured: " and why; ""
  // for one folder, for a run that goes on, and while nobody has said.
  std::string origin;
  bool is_fixed = false;  // by the user or the store; else a plan may change them for want of room
};

// What is known without a look at the disks: one folder, --set=nvme_weights, --bench. Else all the
// same, and no origin.
StripeShares KnownShares(const TrainOptions& options, const DiskProfile& profile,
                         const MachineLimits& limits);

// By the speed of the disks, each of which is tried once (ProbeSpeed), one after another. All the
// same where they are on one file system, or where one of them has no room even for that. `stop`
// and the errors as of ProbeSpeed.
absl::StatusOr<StripeShares> MeasuredShares(Engine& engine, const MachineLimits& limits,
                                            const std::function<bool()>& stop);

void SetWeights(const StripeShares& shares, MachineLimits& limits);

// WeightsOfSpeeds of the folders of `limits`. Pure.
StripeWeights WeightsOf(const std::vector<double>& bytes_per_s, const MachineLimits& limits);

// The speed of a step with all state on disk: 14 bytes read and 12 written per parameter, in turns.
double StepBytesPerSecond(const DiskSpeed& speed);

// "/a 67 %, /b 33 % (measured)": for the log.
std::string SharesText(const std::vector<std::string>& folders, const StripeWeights& weights,
                       const std::string& origin);

}  // namespace forebay
