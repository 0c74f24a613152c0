#include "forebay/train/report/run_report_rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

using ValueOfRun = std::function<std::string(const ReportedRun&)>;

void AddRow(std::span<const ReportedRun> runs, std::string name, const ValueOfRun& text_of,
            std::vector<ReportRow>& rows) {
  ReportRow row = {std::move(name), {}};
  for (const ReportedRun& run : runs) row.values.push_back(text_of(run));
  if (std::ranges::any_of(row.values, [](const std::string& value) { return !value.empty(); })) {
    rows.push_back(std::move(row));
  }
}

std::string BytesText(double bytes) {
  return std::isfinite(bytes) ? FormatBytes(std::llround(bytes)) : "";
}

std::string BinaryText(double bytes) {
  return std::isfinite(bytes) ? FormatBinaryBytes(std::llround(bytes)) : "";
}

// "1.20 GB (plan 1.25 GB: 96.0 % of it)".
std::string BesidePlan(double actual, double planned, std::string (*text_of)(double)) {
  if (!std::isfinite(actual)) return "";
  if (!std::isfinite(planned)) return text_of(actual);
  const std::string share =
      planned > 0 ? fmt::format(": {:.1f} % of it", 100 * actual / planned) : "";
  return fmt::format("{} (plan {}{})", text_of(actual), text_of(planned), share);
}

std::string LossText(const StepFigure& loss) {
  return loss.step < 0 ? "" : fmt::format("{:.4f} at step {}", loss.value, loss.step);
}

std::string ProgressText(const ReportedRun& run) {
  const RunStatistics& statistics = run.statistics;
  std::string text = fmt::format("{}", statistics.last_step);
  if (run.record.num_steps > 0) text += fmt::format(" of {}", run.record.num_steps);
  const int64_t lacking = statistics.last_step - statistics.num_steps;
  if (lacking > 0) text += fmt::format(", {} of them without a line", lacking);
  if (run.record.is_in_use) text += "; a process works on the run";
  return text;
}

std::string WearText(const ReportedRun& run) {
  const RunStatistics& statistics = run.statistics;
  if (statistics.num_steps == 0 && !run.record.written.has_value()) return "";
  const char* about = statistics.written_is_exact ? ""
                      : run.record.written        ? "about "
                                                  : "at least ";
  const std::string written = about + BytesText(statistics.written_bytes);
  if (!(statistics.rated_tbw > 0)) return written;
  return fmt::format("{} = {:.2g} % of a drive of {} TBW", written,
                     100 * statistics.share_of_rated(), statistics.rated_tbw);
}

std::string MemoryText(const ReportedRun& run) {
  return BesidePlan(run.statistics.host_peak_bytes, run.record.Planned("host_bytes"), BinaryText);
}

std::string BatchText(const RunRecord& record) {
  if (record.settings.empty()) return "";
  return fmt::format("{} x {} x {} (batch x seq x accum)", record.Setting("batch"),
                     record.Setting("seq"), record.Setting("accum"));
}

std::string JoinedSettings(const RunRecord& record, std::initializer_list<const char*> names) {
  std::string text;
  for (const char* name : names) {
    const std::string value = record.Setting(name);
    if (!value.empty()) text += fmt::format("{}{}", text.empty() ? "" : ", ", value);
  }
  return text;
}

void AddSettings(std::span<const ReportedRun> runs, std::vector<ReportRow>& rows) {
  const auto add = [&](const char* name, auto text_of) {
    AddRow(
        runs, name, [&](const ReportedRun& run) { return text_of(run.record); }, rows);
  };
  add("model", [](const RunRecord& run) { return run.Setting("model"); });
  add("data", [](const RunRecord& run) { return run.Setting("data"); });
  add("tokens a step", BatchText);
  add("optimizer", [](const RunRecord& run) {
    return JoinedSettings(run, {"optimizer", "lr", "schedule"});
  });
  add("precision, layout", [](const RunRecord& run) {
    return JoinedSettings(run, {"precision", "layout"});
  });
  add("device, durability", [](const RunRecord& run) {
    const auto durability = run.plan.find("durability");
    const std::string device = run.Setting("device");
    if (durability == run.plan.end() || !durability->is_string()) return device;
    return fmt::format("{}{}{}", device, device.empty() ? "" : ", ",
                       durability->get<std::string>());
  });
}

void AddLosses(std::span<const ReportedRun> runs, std::vector<ReportRow>& rows) {
  const auto add = [&](const char* name, StepFigure RunStatistics::*loss) {
    AddRow(
        runs, name, [&](const ReportedRun& run) { return LossText(run.statistics.*loss); }, rows);
  };
  add("first loss", &RunStatistics::first_loss);
  add("last loss", &RunStatistics::last_loss);
  add("first held-out loss", &RunStatistics::first_eval_loss);
  add("best held-out loss", &RunStatistics::best_eval_loss);
  add("last held-out loss", &RunStatistics::last_eval_loss);
}

void AddFigures(std::span<const ReportedRun> runs, std::vector<ReportRow>& rows) {
  const auto add = [&](const char* name, const ValueOfRun& text_of) {
    AddRow(runs, name, text_of, rows);
  };
  add("tokens/s", [](const ReportedRun& run) {
    const double speed = run.statistics.tokens_per_s;
    return std::isfinite(speed) ? fmt::format("{:.{}f}", speed, speed < 100 ? 1 : 0) : "";
  });
  add("median step", [](const ReportedRun& run) {
    const StepFigure& median = run.statistics.median_step_s;
    if (median.step < 0) return std::string();
    const double planned = run.record.Planned("forecast.step_s");
    return fmt::format("{}, step {}", BesidePlan(median.value, planned, SecondsText), median.step);
  });
  add("read a step", [](const ReportedRun& run) {
    return BesidePlan(run.statistics.read_bytes, run.record.Planned("read_bytes_per_step"),
                      BytesText);
  });
  add("written a step", [](const ReportedRun& run) {
    return BesidePlan(run.statistics.write_bytes, run.record.Planned("write_bytes_per_step"),
                      BytesText);
  });
  add("memory charged", MemoryText);
  add("memory of the process",
      [](const ReportedRun& run) { return BinaryText(run.statistics.rss_bytes); });
  add("memory budget",
      [](const ReportedRun& run) { return BinaryText(run.record.Planned("ram_budget_bytes")); });
  add("written in all", WearText);
  const auto add_count = [&](const char* name, int64_t RunStatistics::*count) {
    add(name, [&](const ReportedRun& run) {
      return run.statistics.*count < 0 ? "" : fmt::format("{}", run.statistics.*count);
    });
  };
  add_count("skipped steps", &RunStatistics::num_skipped);
  add_count("recomputed steps", &RunStatistics::num_recomputed);
}

}  // namespace

std::string SecondsText(double seconds) {
  const auto three = [](double value, const char* unit) {
    return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
  };
  if (seconds >= 59.95) return FormatDuration(seconds);
  if (seconds >= 0.9995) return three(seconds, "s");
  if (seconds >= 0.0009995) return three(seconds * 1e3, "ms");
  return three(seconds * 1e6, "us");
}

std::vector<ReportedRun> WithStatistics(std::vector<RunRecord> runs) {
  std::vector<ReportedRun> reported;
  for (RunRecord& run : runs) {
    RunStatistics statistics = StatisticsOf(run);
    reported.push_back({std::move(run), statistics});
  }
  return reported;
}

std::vector<ReportRow> SummaryRows(std::span<const ReportedRun> runs) {
  std::vector<ReportRow> rows;
  AddSettings(runs, rows);
  AddRow(runs, "steps", ProgressText, rows);
  AddLosses(runs, rows);
  AddFigures(runs, rows);
  return rows;
}

std::vector<ReportRow> BreakdownRows(std::span<const ReportedRun> runs) {
  std::vector<ReportRow> rows;
  for (size_t part = 0; part < kNumStepParts; ++part) {
    const ValueOfRun text_of = [&](const ReportedRun& run) -> std::string {
      const double seconds = run.statistics.median_parts[part];
      if (!(seconds > 0)) return "";
      return fmt::format("{} ({:.1f} %)", SecondsText(seconds),
                         100 * seconds / run.statistics.median_step_s.value);
    };
    AddRow(runs, NameOfStepPart(part), text_of, rows);
  }
  return rows;
}

namespace {

// Options that change neither the result of a run nor what its steps are like.
bool IsOfNoConsequence(std::string_view option) {
  constexpr std::array kNames = {"out", "resume", "dry_run", "stop_after", "trace", "trace_steps"};
  return std::ranges::find(kNames, option) != kNames.end();
}

// "300MiB" where the record has 314572800.
std::string AsWritten(const OptionSpec& option, const std::string& value) {
  int64_t bytes = 0;
  const char* end = value.data() + value.size();
  const bool is_bytes = option.value_name == "SIZE" &&
                        std::from_chars(value.data(), end, bytes).ptr == end && !value.empty();
  if (!is_bytes) return value;
  const std::string text = SizeText(bytes);
  return text == value ? value : text + "iB";
}

}  // namespace

std::vector<ReportRow> DifferenceRows(std::span<const ReportedRun> runs) {
  std::vector<ReportRow> rows;
  for (const OptionSpec& option : OptionTable()) {
    if (IsOfNoConsequence(option.name)) continue;
    ReportRow row = {GivenAs(option), {}};
    for (const ReportedRun& run : runs) {
      row.values.push_back(AsWritten(option, run.record.Setting(option.name)));
    }
    if (std::ranges::adjacent_find(row.values, std::not_equal_to<>()) != row.values.end()) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace forebay
