// The arithmetic of --max_tbw, a limit of what all sessions of a run write to the disks of its
// store. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// The limit; 0: none.
int64_t MostWrittenBytes(const TrainOptions& options);

// Making the store writes no more.
int64_t StoreFillBytes(const Plan& plan);

// One step writes no more, with a commit, and computed twice where updates are speculative.
int64_t MostBytesOfAStep(const Plan& plan);

// The steps of a new run until it would stop for --max_tbw; nullopt: without a limit, or where
// steps write nothing.
std::optional<int64_t> StepsWithinLimit(const Plan& plan, const TrainOptions& options);

}  // namespace forebay
