#include <optional>
#include <string>

#include "fmt/format.h"
#include "forebay/base/dtype.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/tools/ram_flag.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/train/export/export_run.h"

namespace forebay {
namespace {

std::optional<DType> DTypeOf(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return name == "bf16" ? DType::kBF16 : name == "fp16" ? DType::kF16 : DType::kF32;
}

class ExportCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("RUN", options_.run, "run folder")->required();
    app.add_option("--out", options_.out,
                   "folder to make, which must not be there (default: RUN/exports/step-N)")
        ->type_name("PATH");
    app.add_option("--dtype", dtype_, "of the weights (default: that of the run's)")
        ->type_name("bf16|fp16|fp32")
        ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
    ram_.Declare(app);
  }

  absl::Status Run(const CommandContext& context) override {
    options_.dtype = DTypeOf(dtype_);
    FOREBAY_ASSIGN_OR_RETURN(options_.ram_bytes, ram_.Read());
    FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
    ProgressLine progress;
    options_.progress = [&](double fraction) {
      if (StopRequested()) return InterruptedError("stopped on request: nothing was exported");
      progress.Show("exporting", fraction);
      return absl::OkStatus();
    };
    FOREBAY_ASSIGN_OR_RETURN(const ExportedRun exported, ExportRun(options_));
    progress.Clear();
    if (!exported.note.empty()) PrintTo(stderr, "{}\n", exported.note);
    if (context.json) {
      PrintTo(stdout, "{}\n",
              Json({{"run", options_.run},
                    {"step", exported.step},
                    {"folder", exported.folder},
                    {"dtype", SafetensorsName(exported.dtype)},
                    {"bytes", exported.bytes}})
                  .dump());
    } else {
      PrintTo(stdout, "step {} of '{}' is in '{}', {} of weights in {}\n", exported.step,
              options_.run, exported.folder, FormatBytes(exported.bytes),
              SafetensorsName(exported.dtype));
    }
    return absl::OkStatus();
  }

 private:
  ExportRunOptions options_;
  std::string dtype_;  // "": not given
  RamFlag ram_;
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<ExportCommand>();
}

}  // namespace forebay
