#include "forebay/measure/report/compare.h"

#include <algorithm>

namespace forebay {
namespace {

const ReportCell* FindCell(std::span<const ReportCell> cells, const CellKey& key) {
  const auto found = std::ranges::find(cells, key, &ReportCell::key);
  return found == cells.end() ? nullptr : &*found;
}

std::optional<double> RatioOf(double after, double before) {
  return before > 0 ? std::optional(after / before) : std::nullopt;
}

}  // namespace

ReportComparison CompareReports(std::span<const ReportCell> before,
                                std::span<const ReportCell> after) {
  ReportComparison comparison;
  for (const ReportCell& cell : before) {
    if (FindCell(before, cell.key) != &cell) continue;
    const ReportCell* const other = FindCell(after, cell.key);
    if (other == nullptr) {
      comparison.only_before.push_back(cell.key);
      continue;
    }
    comparison.cells.push_back({.key = cell.key,
                                .before = cell.gbps,
                                .after = other->gbps,
                                .ratio = RatioOf(other->gbps.median, cell.gbps.median),
                                .least_ratio = RatioOf(other->gbps.min, cell.gbps.max),
                                .most_ratio = RatioOf(other->gbps.max, cell.gbps.min)});
  }
  for (const ReportCell& cell : after) {
    if (FindCell(before, cell.key) == nullptr) comparison.only_after.push_back(cell.key);
  }
  return comparison;
}

}  // namespace forebay
