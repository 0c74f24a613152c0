// The results of `step` and `tune` for people and for spreadsheets. Pure.
#pragma once

#include <string>

#include "forebay/measure/runs/tune.h"
#include "forebay/replay/step_bench.h"

namespace forebay {

// `model`: what was replayed, as the user asked for it.
std::string StepText(const StepBenchReport& report, const std::string& model, double rated_tbw,
                     const std::string& version);
// A header and one row.
std::string StepCsv(const StepBenchReport& report, double rated_tbw);

std::string TuneText(const TuneReport& tuned, const std::string& version);

}  // namespace forebay
