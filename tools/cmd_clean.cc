#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"
#include "forebay/train/files/run_folder.h"

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
    FOREBAY_ASSIGN_OR_RETURN(const CleanedRun cleaned, CleanRun(run_));
    if (!cleaned.note.empty()) PrintTo(stderr, "{}\n", cleaned.note);
    std::vector<std::string> of_others, reasons;
    for (const CleanedRun::Left& left : cleaned.of_others) {
      of_others.push_back(left.folder);
      reasons.push_back(left.why);
    }
    if (context.json) {
      PrintTo(stdout, "{}\n",
              Json({{"run", run_},
                    {"freed_bytes", cleaned.freed_bytes},
                    {"not_there", cleaned.not_there},
                    {"of_others", of_others},
                    {"reasons", reasons}})
                  .dump());
      return absl::OkStatus();
    }
    PrintTo(stdout, "freed {} of swap space of '{}'\n", FormatBytes(cleaned.freed_bytes), run_);
    for (const std::string& folder : cleaned.not_there) {
      PrintTo(stdout,
              "nothing of it is at '{}': it was removed before, or its disk is not mounted\n",
              folder);
    }
    for (const CleanedRun::Left& left : cleaned.of_others) {
      PrintTo(stdout,
              "what is in '{}' was left as it is: {}. Remove it by hand where nothing of it is "
              "needed\n",
              left.folder, left.why);
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
