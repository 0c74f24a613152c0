#include "forebay/train/report/make_report.h"

#include <sys/stat.h>

#include <utility>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/shared_file.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/report/report_csv.h"
#include "forebay/train/report/report_events.h"
#include "forebay/train/report/report_html.h"
#include "forebay/train/report/report_json.h"
#include "forebay/train/report/report_text.h"
#include "forebay/train/report/run_record.h"

namespace forebay {
namespace {

absl::Status WriteReport(const std::string& path, const std::string& contents, MadeReport& made) {
  if (const absl::Status written = WriteSharedFileAtomically(path, contents); !written.ok()) {
    return Annotate(written, "the report cannot be written; --out=PATH puts it elsewhere");
  }
  made.files.push_back(path);
  return absl::OkStatus();
}

// When the last line of a run was written, in seconds since 1970; 0 where there is none.
double EndTimeOf(const RunRecord& run) {
  struct stat info {};
  if (::stat(RunPaths(run.folder).metrics.c_str(), &info) != 0) return 0;
  return static_cast<double>(info.st_mtim.tv_sec) +
         static_cast<double>(info.st_mtim.tv_nsec) * 1e-9;
}

// A folder for each run, by which TensorBoard names it. A file that is there from before is
// replaced, so that no step is in two.
absl::Status WriteEvents(const std::vector<ReportedRun>& runs, const std::string& out,
                         MadeReport& made) {
  for (const ReportedRun& run : runs) {
    const std::string folder = JoinPath(out, run.record.name);
    FOREBAY_RETURN_IF_ERROR(MakeSharedDirectories(folder));
    FOREBAY_RETURN_IF_ERROR(WriteReport(JoinPath(folder, "events.out.tfevents.forebay"),
                                        RunEvents(run.record.metrics, EndTimeOf(run.record)),
                                        made));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MadeReport> MakeReport(const ReportOptions& options) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<RunRecord> records, ReadRuns(options.runs));
  const std::vector<ReportedRun> runs = WithStatistics(std::move(records));
  const std::string& first = options.runs.front();
  MadeReport made;
  made.text = ReportText(runs);
  if (options.form == ReportForm::kHtml) {
    const std::string path = options.out.empty() ? JoinPath(first, "report.html") : options.out;
    FOREBAY_RETURN_IF_ERROR(WriteReport(path, ReportHtml(runs), made));
  } else if (options.form == ReportForm::kTensorboard) {
    const std::string folder = options.out.empty() ? JoinPath(first, "tensorboard") : options.out;
    FOREBAY_RETURN_IF_ERROR(WriteEvents(runs, folder, made));
  } else if (options.form == ReportForm::kCsv && options.out.empty()) {
    made.text = ReportCsv(runs);
  } else if (options.form == ReportForm::kCsv) {
    FOREBAY_RETURN_IF_ERROR(WriteReport(options.out, ReportCsv(runs), made));
  }
  made.json = ReportJson(runs);
  made.json["files"] = made.files;
  return made;
}

}  // namespace forebay
