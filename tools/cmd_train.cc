#include <unistd.h>

#include <functional>
#include <memory>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/connect/connect.h"
#include "forebay/collective/launch.h"
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

// The output of a rank other than 0: warnings alone, which any rank may have.
class QuietOutput : public TrainObserver {
 public:
  explicit QuietOutput(int rank) : rank_(rank) {}
  void OnPlan(const std::string&, const Json&) override {}
  void OnPhase(const std::string&, double) override {}
  void OnProgress(int64_t, int64_t, double) override {}
  void OnStep(const Json&) override {}
  void OnNote(const std::string&) override {}
  void OnWarning(const std::string& line) override {
    output_.OnWarning(fmt::format("rank {}: {}", rank_, line));
  }
  void OnDone(const Json&) override {}

 private:
  const int rank_;
  TrainOutput output_{{}};
};

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
  std::string MoreHelp() const override { return OptionsOnlyToSet(); }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(const Launch launch, DetectLaunch(ProcessEnvironment));
    OptionInputs inputs = flags_.Inputs(context);
    inputs.rank = launch.rank;
    inputs.num_ranks = launch.size;
    FOREBAY_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                             ResolveOptions(inputs, OptionsUse::kTrain));
    if (max_trials_ > 0 && !autotunes_) {
      return UsageError("--autotune_trials is of --autotune. Give that too, or leave it out");
    }
    if (autotunes_ && launch.size > 1) {
      return UsageError(fmt::format(
          "--autotune tries settings of one process, and {} were started. Start it alone",
          launch.size));
    }
    FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
    if (autotunes_) return Tune(resolved, inputs.ds_config_file, context);
    TrainOutputOptions output_options;
    output_options.json = context.json;
    output_options.live = ::isatty(STDERR_FILENO) == 1;
    TrainOutput output(output_options);
    if (launch.size == 1) return Train(resolved, StopRequested, output);
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> ranks,
                             ConnectRanks(launch, {.timeout_s = resolved.options.rank_timeout,
                                                   .scratch_bytes = kRankScratchBytes}));
    TrainEnvironment environment;
    environment.ranks = ranks.get();
    environment.local_rank = launch.local_rank;
    QuietOutput quiet(launch.rank);
    const bool tells = launch.rank == 0;
    return Train(resolved, StopRequested, tells ? static_cast<TrainObserver&>(output) : quiet,
                 environment);
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
