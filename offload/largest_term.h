// The largest term of a plan that does not fit, kept with its DoesNotFitError, for tables of plans.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace forebay {

// `term`: its name and bytes, "activation checkpoints 1.2 GB".
absl::Status WithLargestTerm(absl::Status status, std::string_view term);
// "": none is kept.
std::string LargestTermOf(const absl::Status& status);

}  // namespace forebay
