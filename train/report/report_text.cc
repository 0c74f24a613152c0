#include "forebay/train/report/report_text.h"

#include "fmt/format.h"

namespace forebay {
namespace {

// Values of several runs, one below the other: they may be long paths.
std::string DifferencesText(std::span<const ReportedRun> runs) {
  std::string text;
  for (const ReportRow& row : DifferenceRows(runs)) {
    for (size_t i = 0; i < runs.size(); ++i) {
      text += fmt::format("  {:<28} {:<20} {}\n", i == 0 ? row.name : "", runs[i].record.name,
                          row.values[i].empty() ? "-" : row.values[i]);
    }
  }
  return text.empty() ? "" : "\nsettings that differ\n" + text;
}

std::string RunText(const ReportedRun& run) {
  const std::span<const ReportedRun> alone(&run, 1);
  std::string text = fmt::format("{}\n", run.record.folder);
  const auto line = [&](const std::string& name, const std::string& value) {
    text += fmt::format("  {:<28} {}\n", name, value);
  };
  for (const ReportRow& row : SummaryRows(alone)) line(row.name, row.values[0]);
  const std::vector<ReportRow> parts = BreakdownRows(alone);
  if (!parts.empty()) text += "  of the median step\n";
  for (const ReportRow& part : parts) line("  " + part.name, part.values[0]);
  for (const std::string& note : run.record.notes) line("note", note);
  return text;
}

}  // namespace

std::string ReportText(std::span<const ReportedRun> runs) {
  std::string text;
  for (const ReportedRun& run : runs) {
    if (!text.empty()) text += '\n';
    text += RunText(run);
  }
  return text + DifferencesText(runs);
}

}  // namespace forebay
