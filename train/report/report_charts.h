// The charts of a report: which figures of runs go into which. Pure.
#pragma once

#include <span>
#include <string>

#include "forebay/train/report/run_report_rows.h"

namespace forebay {

// Figures, one after another: loss, speed, where the time went, bytes read and written.
std::string DrawCharts(std::span<const ReportedRun> runs);

}  // namespace forebay
