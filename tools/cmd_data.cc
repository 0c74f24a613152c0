#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/data/data_program.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"

namespace forebay {
namespace {

bool AsksForJson(const std::vector<std::string>& args) {
  const auto format = std::ranges::find(args, "--format");
  return std::ranges::count(args, "--format=json") > 0 ||
         (format != args.end() && format + 1 != args.end() && *(format + 1) == "json");
}

}  // namespace

int RunDataCommand(const std::vector<std::string>& args) {
  const absl::StatusOr<int> exit_code = RunDataProgramOnTerminal(args);
  if (exit_code.ok()) return *exit_code;
  const std::string message = MessageOf(exit_code.status());
  const int code = static_cast<int>(ExitCodeOf(exit_code.status()));
  PrintTo(stderr, "forebay: error: {}\n", message);
  if (AsksForJson(args)) {
    const Json error = {{"error", {{"message", message}, {"exit_code", code}}}};
    PrintTo(stdout, "{}\n", error.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return code;
}

}  // namespace forebay
