// The figures of a run: what its steps were like on the whole, beside what was planned. Pure.
#pragma once

#include <cstdint>

#include "forebay/train/report/run_record.h"
#include "forebay/train/report/step_breakdown.h"

namespace forebay {

// A figure and the step that it is of. kMissing and -1: there is none.
struct StepFigure {
  double value = kMissing;
  int64_t step = -1;
};

// kMissing where it is not known.
struct RunStatistics {
  int64_t num_steps = 0;  // with a line
  int64_t last_step = 0;
  StepFigure first_loss;
  StepFigure last_loss;
  StepFigure first_eval_loss;
  StepFigure best_eval_loss;
  StepFigure last_eval_loss;
  // The step in the middle, when those with times are sorted by them (of two the shorter one), and
  // where its time went.
  StepFigure median_step_s;
  StepParts median_parts{};
  double seconds = 0;              // of all steps with times
  double tokens_per_s = kMissing;  // all tokens of those over `seconds`
  // Medians in the same sense.
  double read_bytes = kMissing;
  double write_bytes = kMissing;
  // The most of any step.
  double host_peak_bytes = kMissing;
  double rss_bytes = kMissing;
  // All that the run has written to the disks of its swap area, and its share of what the drive is
  // rated for. Exact where the last session has ended; else the steps since count as far as they
  // have lines, and where the run has no record of it nothing but those.
  double written_bytes = 0;
  bool written_is_exact = false;
  double rated_tbw = kMissing;
  double share_of_rated() const { return written_bytes / (rated_tbw * 1e12); }
  // -1: no line says whether its step was.
  int64_t num_skipped = -1;
  int64_t num_recomputed = -1;
};

RunStatistics StatisticsOf(const RunRecord& run);

}  // namespace forebay
