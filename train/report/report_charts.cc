#include "forebay/train/report/report_charts.h"

#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/train/report/svg_chart.h"

namespace forebay {
namespace {

// "book, plan" where several runs have to be told apart.
std::string NameOfLine(std::span<const ReportedRun> runs, size_t run, const std::string& what) {
  return runs.size() == 1 ? what : fmt::format("{}, {}", runs[run].record.name, what);
}

// Step 0 has no times and no loss: it is not a step that lacks them.
std::vector<ChartPoint> PointsOf(const MetricsTable& metrics, std::string_view field) {
  const std::vector<double> values = metrics.Values(field);
  std::vector<ChartPoint> points;
  for (size_t row = 0; row < values.size(); ++row) {
    if (metrics.steps()[row] == 0) continue;
    points.push_back({static_cast<double>(metrics.steps()[row]), values[row]});
  }
  return points;
}

// Steps without an evaluation are no gap.
std::vector<ChartPoint> EvaluationsOf(const MetricsTable& metrics) {
  const std::vector<double> values = metrics.Values("eval_loss");
  std::vector<ChartPoint> points;
  for (size_t row = 0; row < values.size(); ++row) {
    if (!std::isfinite(values[row])) continue;
    points.push_back({static_cast<double>(metrics.steps()[row]), values[row]});
  }
  return points;
}

std::string LossChart(std::span<const ReportedRun> runs) {
  LineChart chart = {.title = "Loss", .begins_at_zero = false};
  for (size_t i = 0; i < runs.size(); ++i) {
    const MetricsTable& metrics = runs[i].record.metrics;
    chart.lines.push_back(
        {.name = NameOfLine(runs, i, "loss"), .colour = i, .points = PointsOf(metrics, "loss")});
    std::vector<ChartPoint> evaluations = EvaluationsOf(metrics);
    if (evaluations.empty()) continue;
    chart.lines.push_back({.name = NameOfLine(runs, i, "held-out loss"),
                           .colour = runs.size() == 1 ? 1 : i,
                           .is_dashed = true,
                           .points = std::move(evaluations)});
  }
  return DrawLineChart(chart);
}

// A line for each run and, where its plan has the figure, a level.
std::string FieldChart(std::span<const ReportedRun> runs, LineChart chart, std::string_view field,
                       std::string_view planned_name) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i].record;
    chart.lines.push_back({.name = runs.size() == 1 ? "measured" : run.name,
                           .colour = i,
                           .points = PointsOf(run.metrics, field)});
    const double planned = run.Planned(planned_name);
    if (!IsDrawn(planned)) continue;
    chart.levels.push_back(
        {.name = NameOfLine(runs, i, "plan"), .colour = runs.size() == 1 ? 1 : i, .y = planned});
  }
  return DrawLineChart(chart);
}

std::string BreakdownChart(std::span<const ReportedRun> runs) {
  static_assert(kNumStepParts <= kNumPartColours);
  StackedChart chart = {.title = "Where the time of a step went", .quantity = Quantity::kSeconds};
  for (size_t part = 0; part < kNumStepParts; ++part) {
    chart.part_names.push_back(NameOfStepPart(part));
  }
  for (const ReportedRun& run : runs) {
    const StepBreakdown breakdown(run.record.metrics);
    StackedChart::Panel& panel = chart.panels.emplace_back();
    panel.name = run.record.name;
    for (size_t row = 0; row < breakdown.step_s().size(); ++row) {
      if (!std::isfinite(breakdown.step_s()[row])) continue;
      const StepParts parts = breakdown.At(row);
      panel.bars.push_back({static_cast<double>(run.record.metrics.steps()[row]),
                            std::vector<double>(parts.begin(), parts.end())});
    }
  }
  return DrawStackedChart(chart);
}

}  // namespace

std::string DrawCharts(std::span<const ReportedRun> runs) {
  return LossChart(runs) +
         FieldChart(runs, {.title = "Speed", .unit = "tokens/s"}, "tokens_per_s",
                    "forecast.tokens_per_s") +
         FieldChart(runs, {.title = "Read per step", .quantity = Quantity::kBytes}, "read_bytes",
                    "read_bytes_per_step") +
         FieldChart(runs, {.title = "Written per step", .quantity = Quantity::kBytes},
                    "write_bytes", "write_bytes_per_step") +
         BreakdownChart(runs);
}

}  // namespace forebay
