// The secret that the ranks of a job share, by which they tell each other from strangers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "forebay/collective/launch.h"

namespace forebay {

// FOREBAY_JOB_SECRET, or what is in the file that FOREBAY_JOB_SECRET_FILE names, without trailing
// white space; "" if neither is set. No message contains any of it. UsageError: both are set, it
// is shorter than 16 characters, the file is no plain file, or others than its owner may open it.
// BadInputError: there is no such file. StorageError.
absl::StatusOr<std::string> ReadJobSecret(const EnvironmentLookup& environment);

}  // namespace forebay
