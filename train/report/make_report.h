// The work of `forebay report`: reads runs, and writes or returns a report of them in one of its
// forms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

enum class ReportForm : uint8_t { kHtml, kText, kCsv, kTensorboard };

struct ReportOptions {
  std::vector<std::string> runs;  // folders; at least one
  ReportForm form = ReportForm::kHtml;
  // The file, of kTensorboard the folder. "": RUN/report.html, RUN/tensorboard of the first run; of
  // kCsv none is written. Of kText always "".
  std::string out;
};

struct MadeReport {
  std::string text;                // for people; of kCsv without a file, that
  Json json = Json::object();      // the same figures, for programs
  std::vector<std::string> files;  // that were written, each whole or not at all
};
// The errors of ReadRuns; StorageError where a file cannot be written.
absl::StatusOr<MadeReport> MakeReport(const ReportOptions& options);

}  // namespace forebay
