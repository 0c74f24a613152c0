// Two results files beside each other, cell by cell.
#pragma once

#include <span>
#include <vector>

#include "forebay/measure/report_json.h"

namespace forebay {

struct CellComparison {
  CellKey key;
  Spread before;
  Spread after;
  double ratio = 0;  // of the medians
  // What the ratio could have been with other repeats: slowest over fastest, and the reverse.
  double least_ratio = 0;
  double most_ratio = 0;
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
