// Two results files beside each other, cell by cell.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "forebay/measure/report/report_json.h"

namespace forebay {

struct CellComparison {
  CellKey key;
  Spread before;
  Spread after;
  // The ratio of the medians. nullopt, here and below: there is nothing to divide by.
  std::optional<double> ratio;
  // What the ratio could have been with other repeats: slowest over fastest, and the reverse.
  std::optional<double> least_ratio;
  std::optional<double> most_ratio;
};

struct ReportComparison {
  std::vector<CellComparison> cells;  // in the order of `before`
  std::vector<CellKey> only_before;
  std::vector<CellKey> only_after;
};
// Cells match when their keys are equal; of several with one key the first counts.
ReportComparison CompareReports(std::span<const ReportCell> before,
                                std::span<const ReportCell> after);

}  // namespace forebay
