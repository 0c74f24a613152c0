// The search of `train --autotune`: settings around those that a run has, each tried once. Pure but
// for the trials.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace forebay {

// The settings that are tuned. None of them changes how many rows a step trains on.
struct TunedSettings {
  int64_t batch = 1;  // rows of a micro-batch
  int64_t accum = 1;  // micro-batches of a step
  int threads = 1;
  int update_threads = 1;
  int64_t tile_elems = 0;
  bool operator==(const TunedSettings&) const = default;
};

struct TuneLimits {
  int64_t min_batch = 1;
  int64_t max_batch = 65536;
  int max_threads = 1;
  int max_trials = 16;           // with the first one
  bool only_batches = false;     // leaves threads and tiles as they are
  double least_gain = 0.02;      // a setting is left only for one that is so much faster
  int64_t tile_granularity = 1;  // tiles are multiples of it
};

struct TuneTrial {
  TunedSettings settings;
  std::optional<double> step_s;  // nullopt: it cannot run so
  std::string why_not;
};

struct TuneOutcome {
  std::vector<TuneTrial> trials;  // in their order; the first is the run as it was
  size_t best = 0;                // of them
};

// Seconds of a step with these settings. A DoesNotFitError or UsageError leaves them out; any other
// error, and one of the first settings, ends the search.
using TryFunction = std::function<absl::StatusOr<double>(const TunedSettings&)>;

// Climbs: one setting after another, in steps of two as far as it gets faster.
absl::StatusOr<TuneOutcome> SearchSettings(const TunedSettings& start, const TuneLimits& limits,
                                           const TryFunction& try_settings);

}  // namespace forebay
