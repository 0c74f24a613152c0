#include "forebay/train/report/report_csv.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/markup.h"

namespace forebay {
namespace {

std::vector<std::string> NamesOf(std::span<const ReportedRun> runs) {
  std::vector<std::string> names;
  for (const ReportedRun& run : runs) {
    for (const std::string& name : run.record.metrics.names()) {
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  return names;
}

}  // namespace

std::string ReportCsv(std::span<const ReportedRun> runs) {
  const std::vector<std::string> names = NamesOf(runs);
  std::string csv = "run,step";
  for (const std::string& name : names) {
    csv += ",";
    csv += CsvField(name);
  }
  csv += "\n";
  for (const ReportedRun& run : runs) {
    const MetricsTable& metrics = run.record.metrics;
    std::vector<std::vector<double>> columns;
    for (const std::string& name : names) columns.push_back(metrics.Values(name));
    const std::string folder = CsvField(run.record.folder);
    for (size_t row = 0; row < metrics.steps().size(); ++row) {
      csv += fmt::format("{},{}", folder, metrics.steps()[row]);
      for (const std::vector<double>& column : columns) {
        csv += std::isfinite(column[row]) ? fmt::format(",{}", column[row]) : ",";
      }
      csv += "\n";
    }
  }
  return csv;
}

}  // namespace forebay
