#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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
#include "forebay/train/plan/plan.h"
#include "forebay/train/plan/stripe_weights.h"
#include "forebay/train/speeds/calibration.h"
#include "forebay/train/start/agree_on_run.h"
#include "forebay/train/start/plan_ranks.h"
#include "forebay/train/start/resolve_options.h"
#include "forebay/train/start/what_if.h"

namespace forebay {
namespace {

// Where a plan cannot say how long a step takes.
constexpr char kNoSpeeds[] =
    "forecast   unknown: --measure takes this machine's speeds, for this plan and later ones\n";
constexpr char kNoGpu[] =
    "forecast   unknown: this machine has no GPU to measure; --machine says what another has\n";
constexpr char kUsual[] = "usual";  // of --what_if without a value
constexpr int kMostRanks = 65536;

class PlanCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("MODEL", model_, "the same as --model");
    app.add_option("--machine", machine_,
                   fmt::format("plan for another machine: a JSON file that says what it has, or {}",
                               fmt::join(MachinePresets(), ", ")))
        ->type_name("FILE");
    app.add_flag(
        "--measure", measures_,
        "measure this machine for some ten seconds, for this plan and later ones, and say how "
        "long a step will take");
    app.add_flag(fmt::format("--what_if{{{}}}", kUsual), what_if_,
                 "plan with other settings too: --what_if=ram=8GiB,layout=int8-moments+batch=8; "
                 "without a value with a usual choice of them")
        ->take_all();
    app.add_option("--ranks", num_ranks_,
                   "plan for one of so many processes that train together (default: 1)")
        ->type_name("N")
        ->check(CLI::Range(1, kMostRanks));
    flags_.Declare(app, OptionsUse::kPlan);
  }
  bool ReportsUnknownFlags() const override { return true; }
  std::string MoreHelp() const override { return OptionsOnlyToSet(); }

  absl::Status Run(const CommandContext& context) override {
    OptionInputs inputs = flags_.Inputs(context);
    inputs.num_ranks = num_ranks_;
    if (!model_.empty()) inputs.flags.insert(inputs.flags.begin(), {"model", model_});
    if (measures_) {
      FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
    }
    return what_if_.empty() ? PlanOne(inputs, context) : PlanSeveral(inputs, context);
  }

 private:
  absl::Status PlanOne(const OptionInputs& inputs, const CommandContext& context) {
    FOREBAY_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                             ResolveOptions(inputs, OptionsUse::kPlan));
    FOREBAY_ASSIGN_OR_RETURN(const Plan plan, PlanFor(resolved.options));
    Json json = ToJson(plan);
    if (num_ranks_ > 1) {
      FOREBAY_ASSIGN_OR_RETURN(
          const PlannedRanks ranks,
          PlanRanks(resolved.options, num_ranks_,
                    [&](const TrainOptions& options) { return PlanPart(options); }));
      json["ranks"] = ToJson(ranks);
      json["slowest_rank"] = ranks.slowest;
      plan_text_ += FormatRanks(ranks);
    }
    PrintTo(stdout, "{}", context.json ? json.dump() + "\n" : plan_text_);
    return absl::OkStatus();
  }

  // Ends with the error of the run as it is given, where that does not fit.
  absl::Status PlanSeveral(const OptionInputs& inputs, const CommandContext& context) {
    const auto plan_for = [&](const TrainOptions& options) { return PlanFor(options); };
    std::vector<std::string> asked = what_if_;
    std::erase(asked, kUsual);
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> settings, SplitAlternatives(asked));
    std::vector<Alternative> rows;
    FOREBAY_ASSIGN_OR_RETURN(rows, settings.empty() ? PlanUsualAlternatives(inputs, plan_for)
                                                    : PlanAlternatives(inputs, settings, plan_for));
    const absl::StatusOr<Plan>& as_given = rows.front().plan;
    if (context.json) {
      Json json = as_given.ok() ? ToJson(*as_given) : Json({{"fits", false}});
      json["what_if"] = ToJson(rows);
      PrintTo(stdout, "{}\n", json.dump());
    } else {
      const bool lacks_speeds = std::ranges::any_of(rows, [](const Alternative& row) {
        return row.plan.ok() && !row.plan->forecast.has_value();
      });
      PrintTo(stdout, "{}{}{}", as_given.ok() ? plan_text_ + "\n" : "", FormatAlternatives(rows),
              lacks_speeds && machine_.empty() ? no_speeds_ : "");
    }
    return as_given.status();
  }

  // Of one rank, or of the one process.
  absl::StatusOr<Plan> PlanPart(TrainOptions options) {
    FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig model, ReadDecoderConfigAt(options.model));
    FOREBAY_ASSIGN_OR_RETURN(const MachineLimits limits, Limits(model, options));
    return MakePlan(model, options, limits);
  }

  absl::StatusOr<MachineLimits> Limits(const DecoderConfig& model, TrainOptions& options) {
    return machine_.empty() ? ThisMachine(model, options) : OtherMachine(options);
  }

  // Of the first rank. Keeps the text of the first one.
  absl::StatusOr<Plan> PlanFor(TrainOptions options) {
    FOREBAY_RETURN_IF_ERROR(TakePartOfRank(/*rank=*/0, num_ranks_, options));
    FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig model, ReadDecoderConfigAt(options.model));
    FOREBAY_ASSIGN_OR_RETURN(const MachineLimits limits, Limits(model, options));
    FOREBAY_ASSIGN_OR_RETURN(Plan plan, MakePlan(model, options, limits));
    if (plan_text_.empty()) {
      FindBetterSettings(model, options, limits, plan);
      plan_text_ = FormatPlan(plan, model, options);
      if (!plan.forecast.has_value() && machine_.empty()) {
        if (plan.on_gpu() && limits.gpu.name.empty()) no_speeds_ = kNoGpu;
        plan_text_ += no_speeds_;
      }
    }
    return plan;
  }

  absl::Status Measure(const DecoderConfig& model, const TrainOptions& options,
                       const MachineLimits& limits) {
    ProgressLine progress;
    return calibration_->Measure(
        model, options, limits, StopRequested,
        [&](std::string_view what, double fraction) { progress.Show(what, fraction); });
  }

  absl::StatusOr<MachineLimits> ThisMachine(const DecoderConfig& model,
                                            const TrainOptions& options) {
    MachineLimits limits = AskMachine(options);
    // With --ram the question may be about another machine than this one.
    if (options.ram_bytes > 0) limits.available_memory_bytes = 0;
    FOREBAY_ASSIGN_OR_RETURN(const DiskProfile profile,
                             ReadDiskProfile(options.bench, SwapFoldersOf(options)));
    if (!profile.warning.empty() && !std::exchange(has_warned_, true)) {
      PrintTo(stderr, "forebay: warning: {}\n", profile.warning);
    }
    AddRates(profile, limits);
    if (!calibration_.has_value()) calibration_ = Calibration::OfThisUser();
    if (measures_) FOREBAY_RETURN_IF_ERROR(Measure(model, options, limits));
    calibration_->AddTo(model, options, limits);
    for (const std::string& note : calibration_->TakeNotes()) {
      if (measures_) PrintTo(stderr, "forebay: {}\n", note);
    }
    TakeSpeedsAsGiven(options, limits.speeds);
    SetWeights(KnownShares(options, profile, limits), limits);
    return limits;
  }

  // A row of --what_if that has no speeds of its own takes those of the run as given, as the better
  // settings do: rows compare.
  void TakeSpeedsAsGiven(const TrainOptions& options, MachineSpeeds& speeds) {
    if (!as_given_.has_value()) as_given_ = {options, speeds};
    const auto& [given, given_speeds] = *as_given_;
    if (options.device != given.device || options.precision != given.precision ||
        options.threads != given.threads) {
      return;
    }
    for (double MachineSpeeds::*speed :
         {&MachineSpeeds::matmul_flops_per_s, &MachineSpeeds::memory_bytes_per_s,
          &MachineSpeeds::bus_bytes_per_s}) {
      if (speeds.*speed == 0) speeds.*speed = given_speeds.*speed;
    }
  }

  absl::StatusOr<MachineLimits> OtherMachine(TrainOptions& options) {
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
    if (!machine.gpu_name.empty() && options.device == ComputeDevice::kCpu &&
        !std::exchange(has_noted_gpu_, true)) {
      PrintTo(stderr, "forebay: this plan is for the CPU of '{}'; --device=cuda is for its {}\n",
              machine.name, machine.gpu_name);
    }
    return LimitsOf(machine, options);
  }

  OptionFlags flags_;
  std::string model_;
  std::string machine_;
  bool measures_ = false;
  std::vector<std::string> what_if_;
  std::string plan_text_;
  const char* no_speeds_ = kNoSpeeds;
  std::optional<Calibration> calibration_;
  std::optional<std::pair<TrainOptions, MachineSpeeds>> as_given_;
  bool has_warned_ = false;
  bool has_noted_gpu_ = false;
  int num_ranks_ = 1;
};

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  return std::make_unique<PlanCommand>();
}

}  // namespace forebay
