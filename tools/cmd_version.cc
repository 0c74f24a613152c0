#include "forebay/tools/cmd_version.h"

#include "forebay/base/json.h"
#include "forebay/tools/print.h"

namespace forebay {

absl::Status VersionCommand::Run(const CommandContext& context) {
  const std::string libraries = libraries_ != nullptr ? libraries_() : "";
  if (context.json) {
    Json json = {{"version", FOREBAY_VERSION}, {"compiler", __VERSION__}};
    if (libraries_ != nullptr) json["libraries"] = libraries;
    PrintTo(stdout, "{}\n", json.dump());
    return absl::OkStatus();
  }
  PrintTo(stdout, "{} {}\n", program_, FOREBAY_VERSION);
  if (libraries_ != nullptr) PrintTo(stdout, "{}\n", libraries);
  return absl::OkStatus();
}

}  // namespace forebay
