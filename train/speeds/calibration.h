// How fast this machine does what a step asks of it: products of the model's shapes, an update, the
// bus of a GPU, and the disks. Measured in some ten seconds, and kept for later plans.
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
#include "forebay/train/speeds/measure_gpu.h"
#include "forebay/train/speeds/measure_host.h"
#include "forebay/train/speeds/speed_cache.h"

namespace forebay {

// The functions that measure: those of measure_host.h and measure_gpu.h, but for tests.
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
  std::function<absl::StatusOr<double>(const DecoderConfig&, const TrainOptions&,
                                       const std::function<bool()>& stop)>
      gpu_block = MeasureGpuBlock;
  std::function<absl::StatusOr<double>(const TrainOptions&, const std::function<bool()>& stop)>
      bus = MeasureBus;
};

// Owned by one thread.
class Calibration {
 public:
  // `cache`: nullopt keeps nothing.
  explicit Calibration(std::optional<SpeedCache> cache, SpeedMeasures measures = {})
      : cache_(std::move(cache)), measures_(std::move(measures)) {}
  // In CacheFolder("speeds").
  static Calibration OfThisUser();

  // Measures what this object has not measured yet for such a run; what cannot be kept is a note.
  // All is measured in turns, and medians of them count. `on_progress` is told what is measured,
  // and the fraction of the work that is done. The errors of the functions that measure.
  absl::Status Measure(const DecoderConfig& model, const TrainOptions& options,
                       const MachineLimits& limits, const std::function<bool()>& stop,
                       const std::function<void(std::string_view, double)>& on_progress);

  // Puts what is known into `limits`: its speeds with their origin, and those of disks that have
  // none.
  void AddTo(const DecoderConfig& model, const TrainOptions& options, MachineLimits& limits) const;

  // Since the last call.
  std::vector<std::string> TakeNotes();

 private:
  struct Part {
    std::string_view what;  // for people
    Json key;
    std::function<absl::StatusOr<Speeds>()> measure;
  };
  absl::StatusOr<std::vector<Part>> PartsOf(const DecoderConfig& model, const TrainOptions& options,
                                            const MachineLimits& limits,
                                            const std::function<bool()>& stop) const;
  std::optional<KeptSpeeds> Find(const Json& key) const;
  void Keep(const Json& key, Speeds speeds);

  std::optional<SpeedCache> cache_;
  SpeedMeasures measures_;
  std::map<std::string, Speeds> measured_;  // by key, by this object
  std::vector<std::string> notes_;
};

}  // namespace forebay
