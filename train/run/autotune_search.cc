#include "forebay/train/run/autotune_search.h"

#include <algorithm>
#include <utility>

#include "forebay/base/errors.h"

namespace forebay {
namespace {

// Settings one step from others; nullopt: there are none.
using Move = std::function<std::optional<TunedSettings>(const TunedSettings&)>;

class SettingsSearch {
 public:
  SettingsSearch(const TuneLimits& limits, const TryFunction& try_settings)
      : limits_(limits), try_settings_(try_settings) {}

  absl::StatusOr<TuneOutcome> Run(const TunedSettings& start) {
    FOREBAY_ASSIGN_OR_RETURN(const double start_s, try_settings_(start));
    outcome_.trials.push_back({start, start_s, ""});
    FOREBAY_RETURN_IF_ERROR(Climb(Batches(true), Batches(false)));
    if (!limits_.only_batches) {
      FOREBAY_RETURN_IF_ERROR(Climb(Tiles(true), Tiles(false)));
      FOREBAY_RETURN_IF_ERROR(
          Climb(Threads(&TunedSettings::threads, true), Threads(&TunedSettings::threads, false)));
      FOREBAY_RETURN_IF_ERROR(Climb(Threads(&TunedSettings::update_threads, true),
                                    Threads(&TunedSettings::update_threads, false)));
    }
    return std::move(outcome_);
  }

 private:
  // One way as far as it gets faster; the other only where the first did not help at all.
  absl::Status Climb(const Move& one_way, const Move& other_way) {
    for (const Move* way : {&one_way, &other_way}) {
      const size_t before = outcome_.best;
      FOREBAY_RETURN_IF_ERROR(ClimbOneWay(*way));
      if (outcome_.best != before) break;
    }
    return absl::OkStatus();
  }

  absl::Status ClimbOneWay(const Move& move) {
    while (std::ssize(outcome_.trials) < limits_.max_trials) {
      const size_t before = outcome_.best;
      const std::optional<TunedSettings> next = move(outcome_.trials[before].settings);
      if (!next.has_value() || WasTried(*next)) break;
      FOREBAY_RETURN_IF_ERROR(Try(*next));
      if (outcome_.best == before) break;
    }
    return absl::OkStatus();
  }

  absl::Status Try(const TunedSettings& settings) {
    const absl::StatusOr<double> step_s = try_settings_(settings);
    TuneTrial trial{settings, std::nullopt, ""};
    if (step_s.ok()) {
      trial.step_s = *step_s;
    } else if (ExitCodeOf(step_s.status()) == ExitCode::kDoesNotFit ||
               ExitCodeOf(step_s.status()) == ExitCode::kUsage) {
      trial.why_not = MessageOf(step_s.status());
    } else {
      return step_s.status();
    }
    outcome_.trials.push_back(std::move(trial));
    const double best_s = *outcome_.trials[outcome_.best].step_s;
    if (step_s.ok() && *step_s < best_s * (1 - limits_.least_gain)) {
      outcome_.best = outcome_.trials.size() - 1;
    }
    return absl::OkStatus();
  }

  bool WasTried(const TunedSettings& settings) const {
    return std::ranges::find(outcome_.trials, settings, &TuneTrial::settings) !=
           outcome_.trials.end();
  }

  // The next larger or smaller number of rows in a micro-batch that the rows of a step are a
  // multiple of: twice or half, where that is one.
  Move Batches(bool up) const {
    return [this, up](const TunedSettings& from) -> std::optional<TunedSettings> {
      const int64_t rows = from.batch * from.accum;
      int64_t batch = up ? from.batch * 2 : from.batch / 2;
      while (batch >= 1 && batch <= rows && rows % batch != 0) batch += up ? 1 : -1;
      if (batch < limits_.min_batch || batch > std::min(limits_.max_batch, rows) || batch < 1) {
        return std::nullopt;
      }
      TunedSettings to = from;
      to.batch = batch;
      to.accum = rows / batch;
      return to;
    };
  }

  Move Tiles(bool up) const {
    constexpr int64_t kLeastElems = 64 << 10, kMostElems = 16 << 20;
    return [this, up](const TunedSettings& from) -> std::optional<TunedSettings> {
      TunedSettings to = from;
      to.tile_elems = up ? from.tile_elems * 2 : from.tile_elems / 2;
      const bool is_one = to.tile_elems % limits_.tile_granularity == 0;
      if (!is_one || to.tile_elems < kLeastElems || to.tile_elems > kMostElems) {
        return std::nullopt;
      }
      return to;
    };
  }

  Move Threads(int TunedSettings::*threads, bool up) const {
    return [this, threads, up](const TunedSettings& from) -> std::optional<TunedSettings> {
      TunedSettings to = from;
      to.*threads = up ? std::min(2 * from.*threads, limits_.max_threads) : from.*threads / 2;
      if (to.*threads < 1 || to.*threads == from.*threads) return std::nullopt;
      return to;
    };
  }

  const TuneLimits& limits_;
  const TryFunction& try_settings_;
  TuneOutcome outcome_;
};

}  // namespace

absl::StatusOr<TuneOutcome> SearchSettings(const TunedSettings& start, const TuneLimits& limits,
                                           const TryFunction& try_settings) {
  return SettingsSearch(limits, try_settings).Run(start);
}

}  // namespace forebay
