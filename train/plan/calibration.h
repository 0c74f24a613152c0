// How fast this machine does what a step asks of it: products of the model's shapes, an update, and
// the disks. Measured in some ten seconds, and kept for later plans.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "forebay/base/json.h"
#include "forebay/model/decoder_config.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/measure_speeds.h"
#include "forebay/train/plan/speed_cache.h"

namespace forebay {

// The functions that measure: those of measure_speeds.h, but for tests.
struct SpeedMeasures {
  std::function<absl::StatusOr<double>(const DecoderConfig&, const TrainOptions&, int num_threads,
                                       const std::function<bool()>& stop)>
      block = MeasureBlock;
  std::function<absl::StatusOr<double>(const TrainOptions&, int num_threads,
                                       const std::function<bool()>& stop)>
      update = MeasureUpdate;
  std::function<absl::StatusOr<DiskSpeed>(const TrainOptions&, const std::string& folder,
                                          const std::function<bool()>& stop)>
      disk = MeasureDisk;
};

// Owned by one thread.
class Calibration {
 public:
  // `cache`: nullopt keeps nothing.
  explicit Calibration(std::optional<SpeedCache> cache, SpeedMeasures measures = {})
      : cache_(std::move(cache)), measures_(std::move(measures)) {}
  // In CacheFolder("speeds").
  static Calibration OfThisUser();

  // Measures what this object has not measured yet for such a run on the CPU; what cannot be kept
  // is a note. `on_progress` is told what is measured. The errors of measure_speeds.h.
  absl::Status Measure(const DecoderConfig& model, const TrainOptions& options,
                       const MachineLimits& limits, const std::function<bool()>& stop,
                       const std::function<void(std::string_view)>& on_progress);

  // Puts what is known into `limits`, for a run on the CPU: its speeds with their origin, and those
  // of disks that have none.
  void AddTo(const DecoderConfig& model, const TrainOptions& options, MachineLimits& limits) const;

  // Since the last call.
  std::vector<std::string> TakeNotes();

 private:
  std::optional<KeptSpeeds> Find(const Json& key) const;
  void Keep(const Json& key, Speeds speeds);

  std::optional<SpeedCache> cache_;
  SpeedMeasures measures_;
  std::map<std::string, Speeds> measured_;  // by key, by this object
  std::vector<std::string> notes_;
};

}  // namespace forebay
