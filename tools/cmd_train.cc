#include <unistd.h>

#include <functional>
#include <memory>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/connect/connect.h"
#include "forebay/collective/launch.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/option_flags.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/tools/train_output.h"
#include "forebay/train/run/trainer.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {
namespace {

// What rank 0 does not tell for all: warnings, which any rank may have.
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
  void Declare(CLI::App& app) override { flags_.Declare(app, OptionsUse::kTrain); }
  bool ReportsUnknownFlags() const override { return true; }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(const Launch launch, DetectLaunch(ProcessEnvironment));
    OptionInputs inputs = flags_.Inputs(context);
    inputs.rank = launch.rank;
    inputs.num_ranks = launch.size;
    FOREBAY_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                             ResolveOptions(inputs, OptionsUse::kTrain));
    FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
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
    QuietOutput quiet(launch.rank);
    const bool tells = launch.rank == 0;
    return Train(resolved, StopRequested, tells ? static_cast<TrainObserver&>(output) : quiet,
                 environment);
  }

 private:
  OptionFlags flags_;
};

}  // namespace

std::unique_ptr<Command> MakeTrainCommand() {
  return std::make_unique<TrainCommand>();
}

}  // namespace forebay
