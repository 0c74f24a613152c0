// A report as JSON (docs/cli.md, "report"). Pure.
#pragma once

#include <span>

#include "forebay/base/json.h"
#include "forebay/train/report/run_report_rows.h"

namespace forebay {

Json ReportJson(std::span<const ReportedRun> runs);

}  // namespace forebay
