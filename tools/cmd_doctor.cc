#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/doctor/examine.h"
#include "forebay/doctor/report.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"

namespace forebay {
namespace {

class DoctorCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("--dir", folders_,
                   "a folder on a disk that training would use; may be given many times "
                   "(default: the current one)")
        ->type_name("FOLDER");
    app.add_flag("--json", json_, "one JSON document, and nothing else, on stdout");
  }

  absl::Status Run(const CommandContext& context) override {
    if (folders_.empty()) folders_ = {"."};
    const std::vector<Check> checks = Examine(AskMachineFacts(folders_));
    if (context.json || json_) {
      PrintTo(stdout, "{}\n", ChecksToJson(checks, FOREBAY_VERSION).dump());
    } else {
      PrintTo(stdout, "{}", FormatChecks(checks));
    }
    if (WorstOf(checks) != Verdict::kFail) return absl::OkStatus();
    return EnvironmentError("this machine is not fit for training as it is; see the lines above");
  }

 private:
  std::vector<std::string> folders_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeDoctorCommand() {
  return std::make_unique<DoctorCommand>();
}

}  // namespace forebay
