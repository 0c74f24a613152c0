// What --bench says about the disks of a run's swap area.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/io_profile.h"
#include "forebay/aio/open_engine.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/ask_machine.h"

namespace forebay {

struct DiskProfile {
  // By folder of the swap area. Empty: without --bench, or it does not hold for all of them.
  std::vector<DeviceProfile> devices;
  std::string warning;  // why it does not hold; "" when it does
};

// For a swap area in `folders`, which need not exist yet. BadInputError when the file is not there
// or not valid.
absl::StatusOr<DiskProfile> ReadDiskProfile(const std::string& bench,
                                            const std::vector<std::string>& folders);

// The measured speeds, for the plan.
void AddRates(const DiskProfile& profile, MachineLimits& limits);

// As `open_engine`, with the settings of the profile where the engine is the one that it was
// measured with. Otherwise without them, and `profile` becomes one that does not hold.
absl::StatusOr<OpenedEngine> OpenProfiledEngine(const EngineOptions& options,
                                                const std::vector<std::string>& folders,
                                                const EngineOpener& open_engine,
                                                DiskProfile& profile);

}  // namespace forebay
