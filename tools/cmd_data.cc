#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/data/data_program.h"
#include "forebay/tools/commands.h"

namespace forebay {

int RunDataCommand(const std::vector<std::string>& args) {
  const absl::StatusOr<int> exit_code = RunDataProgramOnTerminal(args);
  if (exit_code.ok()) return *exit_code;
  fmt::print(stderr, "forebay: error: {}\n", MessageOf(exit_code.status()));
  return static_cast<int>(ExitCodeOf(exit_code.status()));
}

}  // namespace forebay
