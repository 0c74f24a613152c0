// Asks this machine for its limits.
#pragma once

#include <string>
#include <vector>

#include "forebay/offload/machine_limits.h"
#include "forebay/train/options/options.h"

namespace forebay {

// Asks the kernel, for the folders that `options` names (or, where they do not exist yet, their
// nearest parent).
MachineLimits AskMachine(const TrainOptions& options);

// Where the swap area of `options` is looked for: --nvme, or OUT. One folder or more.
std::vector<std::string> SwapFoldersOf(const TrainOptions& options);

}  // namespace forebay
