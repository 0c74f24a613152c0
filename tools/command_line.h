// From argv to an exit code: finds the command, parses its flags, prints its error. No exception
// leaves it.
#pragma once

#include <string>
#include <vector>

namespace forebay {

// `args`: without the program's name. Returns the exit code (base/errors.h; docs/cli.md, "Exit
// codes").
int RunCommandLine(const std::vector<std::string>& args);

// "--eval-data=a-b" to "--eval_data=a-b": hyphens in the names of flags count as underscores. What
// follows "--" is left alone.
std::vector<std::string> NormalizeFlags(const std::vector<std::string>& args);

// The exit codes with their meaning, for --help.
std::string ExitCodeHelp();

}  // namespace forebay
