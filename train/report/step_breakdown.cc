#include "forebay/train/report/step_breakdown.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fmt/format.h"

namespace forebay {
namespace {

// Sums of seconds that were printed and read again differ in their last digits.
constexpr double kRounding = 1e-9;

// Requires: the part is an Activity's.
Activity ActivityOf(size_t part) {
  static_assert(static_cast<size_t>(Activity::kOther) == 0);
  return static_cast<Activity>(part % kNumActivities);
}

double OrZero(double value) {
  return std::isfinite(value) ? std::max(value, 0.0) : 0.0;
}

// The rest of `whole`; nothing where that is rounding.
double Left(double whole, double parts) {
  return whole - parts > kRounding * whole ? whole - parts : 0.0;
}

}  // namespace

std::string NameOfStepPart(size_t part) {
  if (part == kComputePart) return "compute";
  if (part == kUnnamedPart) return "wait, cause not recorded";
  if (part == kRestPart) return "not recorded";
  switch (ActivityOf(part)) {
    case Activity::kWrite:
      return "wait for write-back";
    case Activity::kDevice:
      return "wait for the GPU";
    case Activity::kHandOver:
      return "wait for room for gradients";
    case Activity::kRanks:
      return "wait for other ranks";
    case Activity::kOther:
      return "wait for threads";
    default:
      return fmt::format("wait for {}", NameOf(ActivityOf(part)));
  }
}

StepBreakdown::StepBreakdown(const MetricsTable& metrics)
    : step_s_(metrics.Values("step_s")),
      compute_s_(metrics.Values("compute_s")),
      wait_s_(metrics.Values("io_wait_s")) {
  for (size_t i = 0; i < kNumActivities; ++i) {
    waits_[i] = metrics.Values(fmt::format("waits.{}", NameOf(ActivityOf(1 + i))));
  }
}

StepParts StepBreakdown::At(size_t row) const {
  StepParts parts{};
  parts[kComputePart] = OrZero(compute_s_[row]);
  for (size_t i = 0; i < kNumActivities; ++i) parts[1 + i] = OrZero(waits_[i][row]);
  const double named = std::accumulate(parts.begin() + 1, parts.end(), 0.0);
  parts[kUnnamedPart] = Left(OrZero(wait_s_[row]), named);
  parts[kRestPart] = Left(step_s_[row], std::accumulate(parts.begin(), parts.end(), 0.0));
  return parts;
}

}  // namespace forebay
