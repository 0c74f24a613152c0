// Runs as text for a terminal. Pure.
#pragma once

#include <span>
#include <string>

#include "forebay/train/report/run_report_rows.h"

namespace forebay {

// A block for each run, and the settings in which they differ.
std::string ReportText(std::span<const ReportedRun> runs);

}  // namespace forebay
