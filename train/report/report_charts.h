// The charts of a report: which figures of runs go into which. Pure.
#pragma once

#include <span>
#include <string>

#include "forebay/train/report/run_report_rows.h"

namespace forebay {

// Figures, one after another: loss, speed, bytes read and written, where the time went.
std::string DrawCharts(std::span<const ReportedRun> runs);

}  // namespace forebay
