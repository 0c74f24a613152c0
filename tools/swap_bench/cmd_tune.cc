#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/shared_file.h"
#include "forebay/measure/report/report_json.h"
#include "forebay/measure/runs/tune.h"
#include "forebay/tools/print.h"
#include "forebay/tools/swap_bench/bench_output.h"
#include "forebay/tools/swap_bench/bench_table.h"
#include "forebay/tools/swap_bench/program.h"
#include "forebay/tools/swap_bench/step_text.h"
#include "forebay/tools/swap_bench/storage_flags.h"

namespace forebay {
namespace {

const std::vector<double> kTunePercentiles = {50, 99, 99.9};

Json SpreadToJson(const Spread& values) {
  return {{"median", values.median}, {"min", values.min}, {"max", values.max}};
}

Json TuneToJson(const TuneReport& tuned) {
  Json json = ReportToJson(tuned.report, FOREBAY_VERSION, kTunePercentiles);
  json["profile"] = ToJson(tuned.profile, FOREBAY_VERSION);
  json["rates"] = Json::array();
  for (const TunedRates& rates : tuned.rates) {
    json["rates"].push_back({{"turns", rates.num_turns},
                             {"read_gbps", SpreadToJson(rates.reads)},
                             {"write_gbps", SpreadToJson(rates.writes)},
                             {"mixed_gbps", SpreadToJson(rates.mixed)}});
  }
  json["deepspeed"] = Json::array();
  for (const DeviceProfile& device : tuned.profile.devices) {
    json["deepspeed"].push_back(DeepSpeedAio(device));
  }
  return json;
}

class BenchTuneCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("DIR", directories_, "folders on the disks to be tuned")->required();
    storage_.Declare(app);
    app.add_option("--budget", budget_, "for the measurements of each folder (default: 50s)")
        ->type_name("TIME")
        ->take_last();
    app.add_option("-o,--out", out_, "write the settings here, for forebay's --bench")
        ->type_name("io.json")
        ->take_last();
    app.add_flag("--live", live_, "a line each second with the bandwidth, on stderr");
  }

  absl::Status Run(const CommandContext& context) override {
    Job job;
    TuneOptions options;
    FOREBAY_RETURN_IF_ERROR(Read(job, options));
    FOREBAY_RETURN_IF_ERROR(CheckReplaceable("out", out_, kProfileMark));
    FOREBAY_RETURN_IF_ERROR(CatchBenchStopSignals());
    BenchProgress progress(live_);
    FOREBAY_ASSIGN_OR_RETURN(const TuneReport tuned, RunTune(job, options, progress.Hooks()));
    progress.Clear();
    // First, as printing may fail.
    absl::Status written;
    if (!out_.empty()) {
      written =
          WriteSharedFileAtomically(out_, DumpResults(ToJson(tuned.profile, FOREBAY_VERSION)));
    }
    PrintTo(stdout, "{}",
            context.json              ? DumpResults(TuneToJson(tuned))
            : context.format == "csv" ? ReportCsv(tuned.report, kTunePercentiles)
                                      : TuneText(tuned, FOREBAY_VERSION));
    return written;
  }

 private:
  absl::Status Read(Job& job, TuneOptions& options) {
    FlagReader reader;
    storage_.Read(reader);
    reader.Take("budget", ParseDuration(budget_), options.budget_s);
    FOREBAY_RETURN_IF_ERROR(reader.status());
    for (const std::string& directory : directories_) job.targets.push_back({directory, 0});
    job.engine = storage_.engine;
    job.strict = storage_.strict;
    job.size_bytes = storage_.size_bytes;
    job.seed = storage_.seed;
    return CheckSearch(job);
  }

  StorageFlags storage_;
  std::vector<std::string> directories_;
  std::string budget_ = "50s";
  std::string out_;
  bool live_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeBenchTuneCommand() {
  return std::make_unique<BenchTuneCommand>();
}

}  // namespace forebay
