// Where the time of a step went: computation, and each thing that it waited for. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "forebay/base/activity.h"
#include "forebay/train/report/metrics_table.h"

namespace forebay {

// kComputePart, one for each Activity (kOther is the last of them), kUnnamedPart, kRestPart.
inline constexpr size_t kNumStepParts = kNumActivities + 3;
inline constexpr size_t kComputePart = 0;
// Waits without a cause: those of lines that were written before causes were.
inline constexpr size_t kUnnamedPart = kNumStepParts - 2;
// Time of the step that its line does not explain.
inline constexpr size_t kRestPart = kNumStepParts - 1;

// "compute", "wait for weights", ...
std::string NameOfStepPart(size_t part);

// Seconds of each part; they sum to the step's.
using StepParts = std::array<double, kNumStepParts>;

class StepBreakdown {
 public:
  explicit StepBreakdown(const MetricsTable& metrics);
  // Requires: the row has step_s.
  StepParts At(size_t row) const;
  // Seconds of each step, kMissing where its line has no times.
  const std::vector<double>& step_s() const { return step_s_; }

 private:
  std::vector<double> step_s_;
  std::vector<double> compute_s_;
  std::vector<double> wait_s_;
  std::array<std::vector<double>, kNumActivities> waits_;  // in the order of the parts
};

}  // namespace forebay
