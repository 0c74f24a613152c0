// What --max_tbw leaves room for: bytes that all sessions of a run write to the disks of its store.
// Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// Of --max_tbw; 0: no limit.
int64_t MostWrittenBytes(const TrainOptions& options);

// What making the store may write.
int64_t StoreFillBytes(const Plan& plan);

// What one step may write at most, with a commit, and computed twice where updates are speculative.
int64_t MostBytesOfAStep(const Plan& plan);

// The steps of a new run until it would stop for --max_tbw; nullopt: without a limit, or where
// steps write nothing.
std::optional<int64_t> StepsWithinLimit(const Plan& plan, const TrainOptions& options);

}  // namespace forebay
