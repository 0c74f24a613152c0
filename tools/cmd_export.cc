#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/train/export_run.h"

namespace forebay {
namespace {

class ExportCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("RUN", options_.run, "run folder")->required();
    app.add_option("--out", options_.out,
                   "folder to make, which must not be there (default: RUN/exports/step-N)")
        ->type_name("PATH");
  }

  absl::Status Run(const CommandContext& context) override {
    CatchStopSignals("\nforebay: stopping; once more ends at once\n");
    ProgressLine progress;
    options_.progress = [&](double fraction) {
      if (StopRequested()) return InterruptedError("stopped on request: nothing was exported");
      progress.Show("exporting", fraction);
      return absl::OkStatus();
    };
    FOREBAY_ASSIGN_OR_RETURN(const ExportedRun exported, ExportRun(options_));
    progress.Clear();
    if (context.json) {
      PrintTo(stdout, "{}\n",
              Json({{"run", options_.run},
                    {"step", exported.step},
                    {"folder", exported.folder},
                    {"bytes", exported.bytes}})
                  .dump());
    } else {
      PrintTo(stdout, "step {} of '{}' is in '{}', {} of weights\n", exported.step, options_.run,
              exported.folder, FormatBytes(exported.bytes));
    }
    return absl::OkStatus();
  }

 private:
  ExportRunOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<ExportCommand>();
}

}  // namespace forebay
