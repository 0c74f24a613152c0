#include "fmt/format.h"
#include "forebay/base/json.h"
#include "forebay/tools/commands.h"

namespace forebay {
namespace {

class VersionCommand : public Command {
 public:
  void Declare(CLI::App&) override {}

  absl::Status Run(const CommandContext& context) override {
    if (context.json) {
      fmt::print("{}\n", Json({{"version", FOREBAY_VERSION}, {"compiler", __VERSION__}}).dump());
    } else {
      fmt::print("forebay {}\n", FOREBAY_VERSION);
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Command> MakeVersionCommand() {
  return std::make_unique<VersionCommand>();
}

}  // namespace forebay
