#include <unistd.h>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/option_flags.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/tools/train_output.h"
#include "forebay/train/deepspeed/deepspeed_config.h"
#include "forebay/train/run/autotune.h"
#include "forebay/train/run/trainer.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {
namespace {

class TrainCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_flag(
        "--autotune", autotunes_,
        "instead of training: try micro-batches, tiles and threads by short runs, and print "
        "the fastest as flags");
    app.add_option("--autotune_trials", max_trials_,
                   "short runs of --autotune at most (default: 16)")
        ->type_name("N")
        ->check(CLI::Range(1, 65536));
    flags_.Declare(app, OptionsUse::kTrain);
  }
  bool ReportsUnknownFlags() const override { return true; }

  absl::Status Run(const CommandContext& context) override {
    const OptionInputs inputs = flags_.Inputs(context);
    FOREBAY_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                             ResolveOptions(inputs, OptionsUse::kTrain));
    if (max_trials_ > 0 && !autotunes_) {
      return UsageError("--autotune_trials is of --autotune. Give that too, or leave it out");
    }
    FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
    if (autotunes_) return Tune(resolved, inputs.ds_config_file, context);
    TrainOutputOptions output_options;
    output_options.json = context.json;
    output_options.live = ::isatty(STDERR_FILENO) == 1;
    TrainOutput output(output_options);
    return Train(resolved, StopRequested, output);
  }

 private:
  absl::StatusOr<AutotuneOptions> OptionsOfTuning(const std::string& ds_config) const {
    AutotuneOptions options;
    if (!ds_config.empty()) {
      FOREBAY_ASSIGN_OR_RETURN(const DeepSpeedAutotuning asked, ReadDeepSpeedAutotuning(ds_config));
      for (const std::string& note : asked.notes) PrintTo(stderr, "forebay: {}\n", note);
      options.limits.min_batch = asked.min_micro_batch;
      options.limits.max_batch = asked.max_micro_batch;
      options.limits.max_trials = static_cast<int>(asked.max_trials);
      options.limits.only_batches = asked.only_micro_batches;
      options.first_step = asked.first_step;
      options.last_step = asked.last_step;
    }
    if (max_trials_ > 0) options.limits.max_trials = max_trials_;
    return options;
  }

  absl::Status Tune(const ResolvedOptions& resolved, const std::string& ds_config,
                    const CommandContext& context) const {
    FOREBAY_ASSIGN_OR_RETURN(const AutotuneOptions options, OptionsOfTuning(ds_config));
    ProgressLine progress;
    const auto show = [&](int trial, double fraction) {
      progress.Show(fmt::format("trial {} of {} at most", trial, options.limits.max_trials),
                    fraction);
    };
    FOREBAY_ASSIGN_OR_RETURN(const AutotuneReport report,
                             Autotune(resolved, options, StopRequested, show));
    progress.Clear();
    PrintTo(stdout, "{}", context.json ? ToJson(report).dump() + "\n" : FormatAutotune(report));
    return absl::OkStatus();
  }

  OptionFlags flags_;
  bool autotunes_ = false;
  int max_trials_ = 0;  // 0: as many as usual
};

}  // namespace

std::unique_ptr<Command> MakeTrainCommand() {
  return std::make_unique<TrainCommand>();
}

}  // namespace forebay
