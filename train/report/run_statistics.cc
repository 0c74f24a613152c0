#include "forebay/train/report/run_statistics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

namespace forebay {
namespace {

// Rows with a number, in the order of these.
std::vector<size_t> SortedRows(const std::vector<double>& values) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < values.size(); ++row) {
    if (std::isfinite(values[row])) rows.push_back(row);
  }
  std::ranges::sort(rows, {}, [&](size_t row) { return values[row]; });
  return rows;
}

double Median(const std::vector<double>& values) {
  const std::vector<size_t> rows = SortedRows(values);
  return rows.empty() ? kMissing : values[rows[(rows.size() - 1) / 2]];
}

double Most(const std::vector<double>& values) {
  const std::vector<size_t> rows = SortedRows(values);
  return rows.empty() ? kMissing : values[rows.back()];
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::isfinite(value) ? value : 0;
  return sum;
}

// Rows that are 1; -1 where none has a number.
int64_t CountOf(const std::vector<double>& values) {
  return SortedRows(values).empty() ? -1 : static_cast<int64_t>(Sum(values));
}

void SetLosses(const MetricsTable& metrics, RunStatistics& statistics) {
  const std::vector<double> losses = metrics.Values("loss");
  const std::vector<double> eval_losses = metrics.Values("eval_loss");
  for (size_t row = 0; row < losses.size(); ++row) {
    const int64_t step = metrics.steps()[row];
    if (std::isfinite(losses[row])) {
      statistics.last_loss = {losses[row], step};
      if (statistics.first_loss.step < 0) statistics.first_loss = statistics.last_loss;
    }
    if (!std::isfinite(eval_losses[row])) continue;
    statistics.last_eval_loss = {eval_losses[row], step};
    if (statistics.first_eval_loss.step < 0) {
      statistics.first_eval_loss = statistics.last_eval_loss;
    }
    if (!(statistics.best_eval_loss.value <= eval_losses[row])) {
      statistics.best_eval_loss = statistics.last_eval_loss;
    }
  }
}

void SetTimes(const MetricsTable& metrics, RunStatistics& statistics) {
  const StepBreakdown breakdown(metrics);
  const std::vector<double>& step_s = breakdown.step_s();
  const std::vector<size_t> rows = SortedRows(step_s);
  if (rows.empty()) return;
  const size_t median = rows[(rows.size() - 1) / 2];
  statistics.median_step_s = {step_s[median], metrics.steps()[median]};
  statistics.median_parts = breakdown.At(median);
  const std::vector<double> tokens = metrics.Values("tokens");
  double num_tokens = 0;
  for (const size_t row : rows) {
    statistics.seconds += step_s[row];
    num_tokens += std::isfinite(tokens[row]) ? tokens[row] : 0;
  }
  if (num_tokens > 0 && statistics.seconds > 0) {
    statistics.tokens_per_s = num_tokens / statistics.seconds;
  }
}

// A plan that is lost leaves what the options said.
double RatedTbw(const RunRecord& run) {
  const double planned = run.Planned("rated_tbw");
  if (std::isfinite(planned)) return planned;
  const std::string text = run.Setting("tbw");
  double value = kMissing;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void SetWritten(const RunRecord& run, RunStatistics& statistics) {
  const bool has_record = run.written.has_value();
  statistics.written_is_exact = has_record && run.written->ended;
  statistics.written_bytes = has_record ? static_cast<double>(run.written->bytes) : 0;
  if (statistics.written_is_exact) return;
  const std::vector<double> of_steps = run.metrics.Values("write_bytes");
  for (size_t row = 0; row < of_steps.size(); ++row) {
    const bool is_since = !has_record || run.metrics.steps()[row] > run.written->step;
    if (is_since && std::isfinite(of_steps[row])) statistics.written_bytes += of_steps[row];
  }
}

}  // namespace

RunStatistics StatisticsOf(const RunRecord& run) {
  const MetricsTable& metrics = run.metrics;
  RunStatistics statistics;
  statistics.num_steps =
      std::ranges::count_if(metrics.steps(), [](int64_t step) { return step > 0; });
  statistics.last_step = metrics.steps().empty() ? 0 : metrics.steps().back();
  SetLosses(metrics, statistics);
  SetTimes(metrics, statistics);
  statistics.read_bytes = Median(metrics.Values("read_bytes"));
  statistics.write_bytes = Median(metrics.Values("write_bytes"));
  statistics.host_peak_bytes = Most(metrics.Values("host_peak_bytes"));
  statistics.rss_bytes = Most(metrics.Values("rss_bytes"));
  SetWritten(run, statistics);
  statistics.rated_tbw = RatedTbw(run);
  statistics.num_skipped = CountOf(metrics.Values("skipped"));
  statistics.num_recomputed = CountOf(metrics.Values("recomputed"));
  return statistics;
}

}  // namespace forebay
