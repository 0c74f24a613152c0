// The largest term of a plan that does not fit, and the least memory that works, kept with its
// DoesNotFitError, for tables of plans and for choices among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace forebay {

enum class MemoryOf : uint8_t { kHost, kGpu };

// `term`: its name and bytes, "activation checkpoints 1.2 GB". `of`: the memory that lacks.
absl::Status WithLargestTerm(absl::Status status, std::string_view term, int64_t least_bytes,
                             MemoryOf of = MemoryOf::kHost);
// "": none is kept.
std::string LargestTermOf(const absl::Status& status);
// 0: none is kept.
int64_t LeastBytesOf(const absl::Status& status);
// Whether the first of two that keep them lacks less. Whoever lacks memory of the host has enough
// on the GPU.
bool LacksLess(const absl::Status& first, const absl::Status& second);

}  // namespace forebay
