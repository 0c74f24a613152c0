// The largest term of a plan that does not fit, and the least memory that works, kept with its
// DoesNotFitError, for tables of plans and for choices among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace forebay {

// `term`: its name and bytes, "activation checkpoints 1.2 GB".
absl::Status WithLargestTerm(absl::Status status, std::string_view term, int64_t least_bytes);
// "": none is kept.
std::string LargestTermOf(const absl::Status& status);
// 0: none is kept.
int64_t LeastBytesOf(const absl::Status& status);

}  // namespace forebay
