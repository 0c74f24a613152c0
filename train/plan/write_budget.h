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

// The steps until the run would stop for --max_tbw, at the earliest: of a new run, or those that
// follow where the plan has what earlier sessions wrote. nullopt: without a limit, or where neither
// steps nor commits write anything.
std::optional<int64_t> StepsWithinLimit(const Plan& plan, const TrainOptions& options);

}  // namespace forebay
