// The commands of a program: one file each (cmd_*.cc), listed in one table, run by command_line.cc.
// Shared by `forebay` and `swap-bench`.
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
  std::string format;  // of Program::formats
  bool json = false;   // format is "json": results and errors as documents on stdout
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
  // What --help_all prints after the help; "": there is no such flag.
  virtual std::string MoreHelp() const { return ""; }
  // Prints results to stdout, progress to stderr. The error it returns is printed by the caller.
  virtual absl::Status Run(const CommandContext& context) = 0;
};

struct CommandEntry {
  std::string name;
  std::string summary;  // one line for the overview
  std::string example;  // under the command's help
  std::unique_ptr<Command> (*make)() = nullptr;
  // Instead of `make`: takes the arguments as they are and returns the exit code.
  int (*forward)(const std::vector<std::string>& args) = nullptr;
};

struct Program {
  std::string name;                    // "forebay"
  std::string about;                   // the first lines of the overview
  std::vector<CommandEntry> commands;  // in the order of the overview
  std::vector<std::string> formats;    // of --format, the default first; "json" is among them
  std::string exit_codes;              // for --help
  std::string out_of_memory_advice;    // "use a smaller --ram"
  // The command that is meant when the first argument names none but a folder or a flag; "": none.
  std::string default_command;
};

}  // namespace forebay
