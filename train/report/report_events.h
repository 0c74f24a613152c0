// A run as a file for TensorBoard. Pure.
#pragma once

#include <string>

#include "forebay/train/report/run_record.h"

namespace forebay {

// Scalars loss, eval_loss, lr, grad_norm, tokens_per_s, step_s and waits/CAUSE of every step that
// has them. Lines of metrics.jsonl have no times of day: the last step is at `end_time_s` (seconds
// since 1970), and the others are before it by the seconds that the steps took.
std::string RunEvents(const MetricsTable& metrics, double end_time_s);

}  // namespace forebay
