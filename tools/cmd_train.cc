#include <unistd.h>

#include "forebay/base/errors.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/option_flags.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/tools/train_output.h"
#include "forebay/train/run/trainer.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {
namespace {

class TrainCommand : public Command {
 public:
  void Declare(CLI::App& app) override { flags_.Declare(app, OptionsUse::kTrain); }
  bool ReportsUnknownFlags() const override { return true; }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(const ResolvedOptions resolved,
                             ResolveOptions(flags_.Inputs(context), OptionsUse::kTrain));
    FOREBAY_RETURN_IF_ERROR(CatchStopSignals("\nforebay: stopping; once more ends at once\n"));
    TrainOutputOptions output_options;
    output_options.json = context.json;
    output_options.live = ::isatty(STDERR_FILENO) == 1;
    TrainOutput output(output_options);
    return Train(resolved, StopRequested, output);
  }

 private:
  OptionFlags flags_;
};

}  // namespace

std::unique_ptr<Command> MakeTrainCommand() {
  return std::make_unique<TrainCommand>();
}

}  // namespace forebay
