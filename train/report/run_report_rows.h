// A report as rows of names and texts, from which both the text and the page are made. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "forebay/train/report/run_record.h"
#include "forebay/train/report/run_statistics.h"

namespace forebay {

struct ReportedRun {
  RunRecord record;
  RunStatistics statistics;
};
std::vector<ReportedRun> WithStatistics(std::vector<RunRecord> runs);

struct ReportRow {
  std::string name;
  std::vector<std::string> values;  // one for each run; "" where it is not known
};
// Settings that matter, and figures. Rows that no run has a value for are left out.
std::vector<ReportRow> SummaryRows(std::span<const ReportedRun> runs);
// Seconds and share of each part of the median step.
std::vector<ReportRow> BreakdownRows(std::span<const ReportedRun> runs);
// Options that are not the same in all runs, "--lr"; none for one run. Where a run is (--out) is
// not among them.
std::vector<ReportRow> DifferenceRows(std::span<const ReportedRun> runs);

// "3.21 s", "11.5 ms": three significant digits.
std::string SecondsText(double seconds);

}  // namespace forebay
