#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_config.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/option_flags.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/train/plan/disk_profile.h"
#include "forebay/train/plan/machine.h"
#include "forebay/train/plan/measure_speeds.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/plan/stripe_weights.h"
#include "forebay/train/start/agree_on_run.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {
namespace {

constexpr int kMostRanks = 65536;

class PlanCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("MODEL", model_, "the same as --model");
    app.add_option("--machine", machine_,
                   fmt::format("plan for another machine: a JSON file that says what it has, or {}",
                               fmt::join(MachinePresets(), ", ")))
        ->type_name("FILE");
    app.add_flag("--measure", measures_,
                 "measure this machine for a few seconds, and say how long a step will take");
    app.add_option("--ranks", num_ranks_,
                   "plan for one of so many processes that train together (default: 1)")
        ->type_name("N")
        ->check(CLI::Range(1, kMostRanks));
    flags_.Declare(app, OptionsUse::kPlan);
  }
  bool ReportsUnknownFlags() const override { return true; }

  absl::Status Run(const CommandContext& context) override {
    OptionInputs inputs = flags_.Inputs(context);
    inputs.num_ranks = num_ranks_;
    if (!model_.empty()) inputs.flags.insert(inputs.flags.begin(), {"model", model_});
    FOREBAY_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                             ResolveOptions(inputs, OptionsUse::kPlan));
    TrainOptions options = resolved.options;
    FOREBAY_RETURN_IF_ERROR(TakePartOfRank(/*rank=*/0, num_ranks_, options));
    FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig model, ReadDecoderConfig(options.model));
    FOREBAY_ASSIGN_OR_RETURN(const MachineLimits limits,
                             machine_.empty() ? ThisMachine(options) : OtherMachine(options));
    FOREBAY_ASSIGN_OR_RETURN(const Plan plan, MakePlan(model, options, limits));
    PrintTo(stdout, "{}",
            context.json ? ToJson(plan).dump() + "\n" : FormatPlan(plan, model, options));
    return absl::OkStatus();
  }

 private:
  absl::Status Measure(const TrainOptions& options, MachineLimits& limits) const {
    if (options.device != ComputeDevice::kCpu) {
      return UsageError(
          fmt::format("--measure measures a CPU, and --device={} may be a GPU. Say "
                      "what it has with --machine, or use --device=cpu",
                      NameOf(options.device)));
    }
    FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
    ProgressLine progress;
    progress.Show("measuring the disk", 0);
    FOREBAY_RETURN_IF_ERROR(MeasureDisks(options, StopRequested, limits));
    progress.Show("measuring CPU and RAM", 0.2);
    FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig model, ReadDecoderConfig(options.model));
    FOREBAY_ASSIGN_OR_RETURN(limits.speeds,
                             MeasureSpeeds(model, options, limits.num_cores, StopRequested));
    return absl::OkStatus();
  }

  absl::StatusOr<MachineLimits> ThisMachine(const TrainOptions& options) {
    MachineLimits limits = AskMachine(options);
    // With --ram the question may be about another machine than this one.
    if (options.ram_bytes > 0) limits.available_memory_bytes = 0;
    FOREBAY_ASSIGN_OR_RETURN(const DiskProfile profile,
                             ReadDiskProfile(options.bench, SwapFoldersOf(options)));
    if (!profile.warning.empty()) PrintTo(stderr, "forebay: warning: {}\n", profile.warning);
    AddRates(profile, limits);
    if (measures_) FOREBAY_RETURN_IF_ERROR(Measure(options, limits));
    SetWeights(KnownShares(options, profile, limits), limits);
    return limits;
  }

  absl::StatusOr<MachineLimits> OtherMachine(TrainOptions& options) const {
    if (measures_) {
      return UsageError(
          "--measure is about this machine, and --machine about another. Leave one of "
          "them out");
    }
    if (!options.bench.empty()) {
      return UsageError(
          "--bench has the speeds of this machine's disks, and --machine says those "
          "of another. Leave one of them out");
    }
    FOREBAY_ASSIGN_OR_RETURN(const Machine machine, ReadMachine(machine_));
    return LimitsOf(machine, options);
  }

  OptionFlags flags_;
  std::string model_;
  std::string machine_;
  bool measures_ = false;
  int num_ranks_ = 1;
};

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  return std::make_unique<PlanCommand>();
}

}  // namespace forebay
