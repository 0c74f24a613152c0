// Runs as one page: it needs nothing but itself (its own rules forbid it to load anything), no
// script, and reads well on light and dark screens and as text. Pure.
#pragma once

#include <span>
#include <string>

#include "forebay/train/report/run_report_rows.h"

namespace forebay {

std::string ReportHtml(std::span<const ReportedRun> runs);

}  // namespace forebay
