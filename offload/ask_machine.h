// Asks this machine for its limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forebay/offload/machine_limits.h"

namespace forebay {

// Memory, cores, and a disk for each of `folders`: of it, or where it is not there yet, of the
// nearest folder above it. Weights are 1.
MachineLimits LimitsOfMachine(const std::vector<std::string>& folders);

// -1 where it cannot be told; `file_system` is left alone then.
int64_t AskFileSystem(const std::string& folder, uint64_t& file_system);

}  // namespace forebay
