// Results as pictures that a browser shows. Pure.
#pragma once

#include <string>

#include "forebay/measure/runs/run_job.h"
#include "forebay/measure/runs/sweep.h"

namespace forebay {

// In the first line of every picture, by which a file is known to be one of ours.
inline constexpr char kSvgMark[] = "<!-- made by swap-bench -->";

// Bandwidth over time and, below it, the share of operations by latency; a line for each run.
std::string ReportSvg(const BenchReport& report);
// A map of bandwidth for each folder, load and engine: block size by bytes in flight.
std::string SweepSvg(const SweepReport& sweep);

}  // namespace forebay
