#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/tools/commands.h"
#include "forebay/train/run_folder.h"

namespace forebay {
namespace {

class CleanCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("RUN", run_,
                   "run folder; its trained model and logs stay, resuming it becomes impossible")
        ->required();
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(const int64_t freed, CleanRun(run_));
    if (context.json) {
      fmt::print("{}\n", Json({{"run", run_}, {"freed_bytes", freed}}).dump());
    } else {
      fmt::print("freed {} of swap space of '{}'\n", FormatBytes(freed), run_);
    }
    return absl::OkStatus();
  }

 private:
  std::string run_;
};

}  // namespace

std::unique_ptr<Command> MakeCleanCommand() {
  return std::make_unique<CleanCommand>();
}

}  // namespace forebay
