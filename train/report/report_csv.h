// All steps of all runs as CSV (RFC 4180, lines end with a newline alone). Pure.
#pragma once

#include <span>
#include <string>

#include "forebay/train/report/run_report_rows.h"

namespace forebay {

// Columns: run (its folder), step, then every number that any line has, as MetricsTable names it. A
// number that a line does not have is empty; true and false are 1 and 0.
std::string ReportCsv(std::span<const ReportedRun> runs);

}  // namespace forebay
