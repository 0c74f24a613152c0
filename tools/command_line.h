// From argv to an exit code: finds the command, parses its flags, prints its error. No exception
// leaves it. Shared by `forebay` and `swap-bench`.
#pragma once

#include <string>
#include <vector>

#include "forebay/tools/command.h"

namespace forebay {

// `args`: without the program's name. Returns the exit code (base/errors.h; docs/cli.md, "Exit
// codes").
int RunCommandLine(const Program& program, const std::vector<std::string>& args);

// "--eval-data=a-b" to "--eval_data=a-b": hyphens in the names of flags count as underscores. What
// follows "--" is left alone.
std::vector<std::string> NormalizeFlags(const std::vector<std::string>& args);

}  // namespace forebay
