#include <memory>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/measure/report/report_json.h"
#include "forebay/measure/runs/run_job.h"
#include "forebay/measure/runs/wear.h"
#include "forebay/tools/print.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/tools/swap_bench/bench_output.h"
#include "forebay/tools/swap_bench/bench_table.h"
#include "forebay/tools/swap_bench/fio_check.h"
#include "forebay/tools/swap_bench/job_flags.h"
#include "forebay/tools/swap_bench/program.h"
#include "forebay/tools/swap_bench/svg_plot.h"

namespace forebay {
namespace {

// `swap-bench WORD` runs in the folder WORD, and who typed it may have meant a command.
absl::Status CheckAreNoCommands(const Job& job) {
  for (const auto& [name, weight] : job.targets) {
    if (name.find('/') != std::string::npos || FileExists(name)) continue;
    std::vector<std::string> commands;
    for (const CommandEntry& entry : SwapBenchProgram().commands) commands.push_back(entry.name);
    return BadInputError(fmt::format("'{}' is no folder here, and no command of swap-bench ({})",
                                     name, fmt::join(commands, ", ")));
  }
  return absl::OkStatus();
}

class BenchRunCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    flags_.Declare(app);
    app.add_flag("--fio", fio_, "run fio too, in turn with every pass, and print both");
    output_.Declare(app);
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(const Job job, flags_.Read());
    FOREBAY_RETURN_IF_ERROR(CheckJob(job));
    FOREBAY_RETURN_IF_ERROR(CheckAreNoCommands(job));
    FOREBAY_RETURN_IF_ERROR(output_.Check());
    if (fio_ && job.verify) {
      return UsageError("--fio overwrites the blocks that --verify looks at; give one of them");
    }
    FOREBAY_RETURN_IF_ERROR(CatchBenchStopSignals());
    if (fio_) FOREBAY_RETURN_IF_ERROR(CheckFioInstalled());
    BenchProgress progress(output_.live());
    BenchHooks hooks = progress.Hooks();
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSession> session,
                             BenchSession::Open(job, hooks));
    FioCheck fio(*session, job);
    if (fio_) {
      hooks.beside = [&](const BenchCell& cell) { return fio.Run(cell); };
    }
    const std::vector<BenchCell> cells = CellsOf(job);
    BenchReport report = BeginReport(job, *session);
    progress.Clear();
    for (const auto& target : session->targets()) {
      const std::string note = WearNote(job, *target, fio_);
      if (note.empty()) continue;
      PrintTo(stderr, "swap-bench: note: {}\n", note);
      report.warnings.push_back(note);
    }
    FOREBAY_ASSIGN_OR_RETURN(report.runs, RunCells(*session, job, cells, EngineKind::kAuto, hooks));
    NoteHeat(report);
    progress.Clear();
    fio.AddTo(cells, report.runs);
    PrintTo(stderr, "{}", FioText(report.runs));
    return Print(report, context);
  }

 private:
  absl::Status Print(const BenchReport& report, const CommandContext& context) const {
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<double> percentiles, flags_.Percentiles());
    const Json json = ReportToJson(report, FOREBAY_VERSION, percentiles);
    const absl::Status written = output_.WriteFiles(json, ReportSvg(report));
    PrintTo(stdout, "{}",
            context.json              ? DumpResults(json)
            : context.format == "csv" ? ReportCsv(report, percentiles)
                                      : ReportText(report, FOREBAY_VERSION));
    FOREBAY_RETURN_IF_ERROR(written);
    return CheckVerified(report);
  }

  JobFlags flags_{JobUse::kRun};
  OutputFlags output_;
  bool fio_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeBenchRunCommand() {
  return std::make_unique<BenchRunCommand>();
}

}  // namespace forebay
