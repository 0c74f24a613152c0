// The commands of `forebay`: one file each (cmd_*.cc), listed in commands.cc, run by
// command_line.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace forebay {

// What every command is given beside its own flags.
struct CommandContext {
  bool json = false;  // --format=json: results and errors as JSON documents on stdout
  std::vector<std::string> unknown_flags;  // as typed; empty unless the command reports them itself
};

// One run of one command: Declare, then Run.
class Command {
 public:
  virtual ~Command() = default;
  // Adds the command's flags, bound to its members.
  virtual void Declare(CLI::App& app) = 0;
  // True: Run is called with unknown flags too and reports them among other problems.
  virtual bool ReportsUnknownFlags() const { return false; }
  // Prints results to stdout, progress to stderr. The error it returns is printed by the caller.
  virtual absl::Status Run(const CommandContext& context) = 0;
};

struct CommandEntry {
  std::string name;
  std::string summary;  // one line for the overview
  std::string example;  // under the command's help
  std::unique_ptr<Command> (*make)();
};
// In the order of the overview. `data` is not among them: it forwards its arguments as they are
// (data_command.h).
const std::vector<CommandEntry>& Commands();

std::unique_ptr<Command> MakeTrainCommand();
std::unique_ptr<Command> MakePlanCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeEvalCommand();
std::unique_ptr<Command> MakeInspectCommand();
std::unique_ptr<Command> MakeInitCommand();
std::unique_ptr<Command> MakeCleanCommand();
std::unique_ptr<Command> MakeVersionCommand();

// Runs `forebay-data` with these arguments on our terminal and returns its exit code.
int RunDataCommand(const std::vector<std::string>& args);

}  // namespace forebay
