#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/measure/report/report_json.h"
#include "forebay/measure/runs/sweep.h"
#include "forebay/tools/print.h"
#include "forebay/tools/swap_bench/bench_output.h"
#include "forebay/tools/swap_bench/bench_table.h"
#include "forebay/tools/swap_bench/job_flags.h"
#include "forebay/tools/swap_bench/program.h"
#include "forebay/tools/swap_bench/svg_plot.h"

namespace forebay {
namespace {

constexpr double kQuickS = 30;
const std::vector<double> kSweepPercentiles = {50, 99, 99.9};

Json PointToJson(const SweepPoint& point) {
  Json least = Json::array();
  Json most = Json::array();
  for (const Spread& spread : point.spread) {
    least.push_back(spread.min);
    most.push_back(spread.max);
  }
  const bool once = point.num_turns == 0;
  return {{"bs", point.block_bytes},
          {"inflight", point.inflight_bytes},
          {"engine", NameOf(point.engine)},
          {"gbps", point.gbps},
          {"turns", point.num_turns},
          {"gbps_min", once ? Json(point.gbps) : least},
          {"gbps_max", once ? Json(point.gbps) : most},
          {"split", point.split}};
}

Json SweepToJson(const SweepReport& sweep) {
  Json json = ReportToJson(sweep.report, FOREBAY_VERSION, kSweepPercentiles);
  Json best = Json::array();
  for (const SweepBest& one : sweep.best) {
    best.push_back(
        {{"device", one.device}, {"best", PointToJson(one.best)}, {"knee", PointToJson(one.knee)}});
  }
  json["best"] = std::move(best);
  return json;
}

class BenchSweepCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    flags_.Declare(app);
    app.add_option("--budget", budget_, "for all measurements together (default: 3m)")
        ->type_name("TIME")
        ->take_last();
    app.add_flag("--quick", quick_, "a budget of 30 s");
    output_.Declare(app);
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(const Job job, flags_.Read());
    SweepOptions options;
    const absl::StatusOr<double> budget_s = ParseDuration(budget_);
    if (!budget_s.ok()) return Annotate(budget_s.status(), "--budget");
    options.budget_s = *budget_s;
    if (quick_) options.budget_s = kQuickS;
    FOREBAY_RETURN_IF_ERROR(output_.Check());
    FOREBAY_RETURN_IF_ERROR(CatchBenchStopSignals());
    BenchProgress progress(output_.live());
    FOREBAY_ASSIGN_OR_RETURN(const SweepReport sweep, RunSweep(job, options, progress.Hooks()));
    progress.Clear();
    const Json json = SweepToJson(sweep);
    const absl::Status written = output_.WriteFiles(json, SweepSvg(sweep));
    PrintTo(stdout, "{}",
            context.json              ? DumpResults(json)
            : context.format == "csv" ? ReportCsv(sweep.report, kSweepPercentiles)
                                      : SweepText(sweep, FOREBAY_VERSION));
    return written;
  }

 private:
  JobFlags flags_{JobUse::kSweep};
  OutputFlags output_;
  std::string budget_ = "3m";
  bool quick_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeBenchSweepCommand() {
  return std::make_unique<BenchSweepCommand>();
}

}  // namespace forebay
