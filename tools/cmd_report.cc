#include <map>
#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"
#include "forebay/train/report/make_report.h"

namespace forebay {
namespace {

const std::map<std::string, ReportForm>& Forms() {
  static const std::map<std::string, ReportForm> forms = {
      {"html", ReportForm::kHtml},
      {"text", ReportForm::kText},
      {"csv", ReportForm::kCsv},
      {"tensorboard", ReportForm::kTensorboard}};
  return forms;
}

class ReportCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("RUN", options_.runs, "run folders, side by side in one report")->required();
    app.add_option("--to", form_,
                   "a page for browsers (and text on stdout), text alone, every step as CSV, or "
                   "files for TensorBoard (default: html)")
        ->type_name("html|text|csv|tensorboard")
        ->check(CLI::IsMember(Forms()));
    app.add_option("--out", options_.out,
                   "file to write; of tensorboard a folder (default: RUN/report.html, "
                   "RUN/tensorboard of the first run; csv: stdout)")
        ->type_name("PATH");
  }

  absl::Status Run(const CommandContext& context) override {
    options_.form = Forms().at(form_);
    if (options_.form == ReportForm::kText && !options_.out.empty()) {
      return UsageError(
          fmt::format("--out={} is for a page, CSV or TensorBoard; --to=text goes to stdout. Leave "
                      "out one of the two",
                      options_.out));
    }
    if (options_.form == ReportForm::kCsv && options_.out.empty() && context.json) {
      return UsageError(
          "--to=csv and --format=json cannot both go to stdout. Name a file for the CSV: "
          "--out=steps.csv");
    }
    FOREBAY_ASSIGN_OR_RETURN(const MadeReport made, MakeReport(options_));
    if (context.json) {
      PrintTo(stdout, "{}\n", made.json.dump(-1, ' ', false, Json::error_handler_t::replace));
      return absl::OkStatus();
    }
    PrintTo(stdout, "{}", made.text);
    for (const std::string& file : made.files) PrintTo(stderr, "written: {}\n", file);
    return absl::OkStatus();
  }

 private:
  ReportOptions options_;
  std::string form_ = "html";
};

}  // namespace

std::unique_ptr<Command> MakeReportCommand() {
  return std::make_unique<ReportCommand>();
}

}  // namespace forebay
