#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/measure/report/probe.h"
#include "forebay/tools/print.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/tools/swap_bench/bench_output.h"
#include "forebay/tools/swap_bench/bench_table.h"
#include "forebay/tools/swap_bench/program.h"

namespace forebay {
namespace {

class BenchProbeCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("DIR", directories_, "folders on the disks to be looked at")->required();
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_RETURN_IF_ERROR(CatchBenchStopSignals());
    FOREBAY_ASSIGN_OR_RETURN(const ProbeReport probe, ProbeMachine(directories_, StopRequested));
    PrintTo(stdout, "{}",
            context.json              ? DumpResults(ProbeToJson(probe, FOREBAY_VERSION))
            : context.format == "csv" ? ProbeCsv(probe)
                                      : ProbeText(probe, FOREBAY_VERSION));
    return absl::OkStatus();
  }

 private:
  std::vector<std::string> directories_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchProbeCommand() {
  return std::make_unique<BenchProbeCommand>();
}

}  // namespace forebay
