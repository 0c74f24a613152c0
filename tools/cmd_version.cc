#include "forebay/tools/cmd_version.h"

#include "forebay/base/json.h"
#include "forebay/tools/print.h"

namespace forebay {

absl::Status VersionCommand::Run(const CommandContext& context) {
  if (context.json) {
    PrintTo(stdout, "{}\n", Json({{"version", FOREBAY_VERSION}, {"compiler", __VERSION__}}).dump());
  } else {
    PrintTo(stdout, "{} {}\n", program_, FOREBAY_VERSION);
  }
  return absl::OkStatus();
}

}  // namespace forebay
