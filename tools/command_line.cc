#include "forebay/tools/command_line.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/memory/address_space.h"
#include "forebay/tools/print.h"

namespace forebay {
namespace {

// A standard stream that the caller closed is opened on nothing, so that no file of ours gets its
// number and all that is printed. Read-only: writing results still fails, and is told.
void OccupyStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      [[maybe_unused]] const int taken = ::open("/dev/null", O_RDONLY);  // the lowest free number
    }
  }
}

std::vector<std::string> CommandNames(const Program& program) {
  std::vector<std::string> names = {"help"};
  for (const CommandEntry& entry : program.commands) names.push_back(entry.name);
  return names;
}

std::string Overview(const Program& program) {
  std::string text = program.about + "\nCommands:\n";
  for (const CommandEntry& entry : program.commands) {
    text += fmt::format("  {:<10}{}\n", entry.name, entry.summary);
  }
  return text + fmt::format(
                    "\n'{} COMMAND --help' lists the flags of a command; hyphens and underscores "
                    "are the same in them.\n\n{}",
                    program.name, program.exit_codes);
}

bool WantsJson(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--format=json") return true;
    if (args[i] == "--format" && i + 1 < args.size() && args[i + 1] == "json") return true;
  }
  return false;
}

// Prints `status` when it is an error and returns its exit code.
int Report(const Program& program, const absl::Status& status, bool json) {
  if (status.ok()) return static_cast<int>(ExitCode::kOk);
  const int code = static_cast<int>(ExitCodeOf(status));
  const bool interrupted = ExitCodeOf(status) == ExitCode::kInterrupted;
  std::fflush(stdout);
  PrintTo(stderr, "{}: {}{}\n", program.name, interrupted ? "" : "error: ", MessageOf(status));
  if (json) {
    const Json error = {{"error", {{"message", MessageOf(status)}, {"exit_code", code}}}};
    // Paths in messages may hold any bytes.
    PrintTo(stdout, "{}\n", error.dump(-1, ' ', false, Json::error_handler_t::replace));
    std::fflush(stdout);
  }
  return code;
}

absl::Status CannotWriteResults(int error_number) {
  return StorageError(fmt::format(
      "the results could not all be written to stdout{}. Files that the command makes are whole; "
      "for the rest run it again with stdout going where there is room",
      error_number == 0 ? "" : ": " + ErrnoText(error_number)));
}

// What is still in stdout's buffer is as much a result as what has left it.
absl::Status FlushResults() {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !failed_before) return absl::OkStatus();
  return CannotWriteResults(errno);
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

// Of what the command could not place, the arguments that look like flags.
std::vector<std::string> UnknownFlags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const std::string& argument : app.remaining()) {
    if (argument.starts_with("--")) flags.push_back(argument);
  }
  return flags;
}

absl::Status UnknownArguments(const CLI::App& app, const std::vector<std::string>& flags,
                              const std::vector<std::string>& rest) {
  std::string message;
  for (const std::string& flag : flags) {
    const std::string name = flag.substr(0, flag.find('=')).substr(2);
    const std::string nearest = NearestName(name, FlagNames(app));
    message += fmt::format("{}unknown flag '{}'{}", message.empty() ? "" : "\n  ", flag,
                           nearest.empty() ? "" : fmt::format("; did you mean '--{}'?", nearest));
  }
  if (message.empty()) message = fmt::format("unexpected argument '{}'", rest.front());
  return UsageError(message + fmt::format("\n  '{} --help' lists all flags", app.get_name()));
}

// `args` as CLI11 understands them as they are meant: left alone it takes the argument that follows
// for the value of '--flag=', and another flag for the value of '--flag'.
absl::StatusOr<std::vector<std::string>> WithValuesApart(const CLI::App& app,
                                                         const std::vector<std::string>& args) {
  std::vector<std::string> apart;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& argument = args[i];
    apart.push_back(argument);
    if (!argument.starts_with("--")) continue;
    if (argument == "--") {
      apart.insert(apart.end(), args.begin() + static_cast<ptrdiff_t>(i) + 1, args.end());
      break;
    }
    const std::string flag = argument.substr(0, argument.find('='));
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr) continue;
    const bool takes_value = option->get_items_expected_max() > 0;
    if (argument.ends_with('=') && argument.size() == flag.size() + 1) {
      if (!takes_value)
        return UsageError(fmt::format("'{}' has no value; write '{}'", argument, flag));
      apart.back() = flag;
      apart.emplace_back();
    } else if (takes_value && argument == flag && i + 1 < args.size()) {
      if (args[i + 1].starts_with("--")) {
        return UsageError(fmt::format("{0} needs a value, but '{1}' follows it. Write {0}=VALUE",
                                      flag, args[i + 1]));
      }
      apart.push_back(args[++i]);
    }
  }
  return apart;
}

// Parses and runs one command. CLI11 reports by exceptions; they end here.
absl::Status ParseAndRun(const Program& program, const CommandEntry& entry,
                         std::vector<std::string> args) {
  CLI::App app(entry.summary, program.name + " " + entry.name);
  app.allow_extras();
  app.get_formatter()->column_width(34);
  app.footer(fmt::format("\nExample:\n  {}\n\n{}", entry.example, program.exit_codes));
  const std::unique_ptr<Command> command = entry.make();
  command->Declare(app);
  if (!command->MoreHelp().empty()) {
    app.set_help_all_flag("--help_all", "print this and the options that only --set gives");
  }
  const std::string formats = fmt::format("{}", fmt::join(program.formats, "|"));
  std::string format = program.formats.front();
  app.add_option("--format", format, fmt::format("of results and errors (default: {})", format))
      ->type_name(formats)
      ->take_last();
  FOREBAY_ASSIGN_OR_RETURN(args, WithValuesApart(app, args));
  std::ranges::reverse(args);  // as CLI11 wants them
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    PrintTo(stdout, "{}", app.help());
    return absl::OkStatus();
  } catch (const CLI::CallForAllHelp&) {
    PrintTo(stdout, "{}\nOnly with --set:\n{}", app.help(), command->MoreHelp());
    return absl::OkStatus();
  } catch (const CLI::RequiredError& error) {
    // A required flag that was mistyped is both missing and unknown; the typing error says more.
    const std::vector<std::string> flags = UnknownFlags(app);
    if (!flags.empty()) return UnknownArguments(app, flags, app.remaining());
    return UsageError(fmt::format("{}. '{} --help' lists all flags", error.what(), app.get_name()));
  } catch (const CLI::ParseError& error) {
    return UsageError(fmt::format("{}. '{} --help' lists all flags", error.what(), app.get_name()));
  }
  if (std::ranges::find(program.formats, format) == program.formats.end()) {
    return UsageError(
        fmt::format("--format is '{}'; allowed: {}", format, fmt::join(program.formats, " or ")));
  }
  CommandContext context;
  context.format = format;
  context.json = format == "json";
  const std::vector<std::string> rest = app.remaining();
  context.unknown_flags = UnknownFlags(app);
  if (!rest.empty() && (context.unknown_flags.empty() || !command->ReportsUnknownFlags())) {
    return UnknownArguments(app, context.unknown_flags, rest);
  }
  return command->Run(context);
}

absl::Status UnknownCommand(const Program& program, const std::string& name) {
  const std::string nearest = NearestName(name, CommandNames(program));
  return UsageError(fmt::format("unknown command '{}'{}\n  '{} --help' lists all commands", name,
                                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
                                program.name));
}

bool IsUtf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::exception&) {
    return false;
  }
}

// File names may be any bytes, but run.json, logs and results are JSON, which holds UTF-8 alone.
absl::Status CheckText(const std::vector<std::string>& args) {
  for (const std::string& argument : args) {
    if (IsUtf8(argument)) continue;
    const std::string shown = Json(argument).dump(-1, ' ', false, Json::error_handler_t::replace);
    return UsageError(
        fmt::format("the argument {} is not valid UTF-8. Give text in UTF-8; rename a file or "
                    "folder that has such "
                    "a name, or name it through a link",
                    shown));
  }
  return absl::OkStatus();
}

// Whether the default command is meant: `first` is a flag or looks like a path, or is nothing like
// the name of a command.
bool MeansDefault(const Program& program, const std::string& first) {
  if (program.default_command.empty()) return false;
  return first.starts_with("-") || first.find('/') != std::string::npos || IsDirectory(first) ||
         NearestName(first, CommandNames(program)).empty();
}

int Dispatch(const Program& program, const std::vector<std::string>& args) {
  const std::string name = args.empty() ? "" : args[0];
  if (name == "help" && args.size() > 1) return Dispatch(program, {args[1], "--help"});
  if (name.empty() || name == "help" || name == "--help" || name == "-h") {
    PrintTo(name.empty() ? stderr : stdout, "{}", Overview(program));
    return static_cast<int>(name.empty() ? ExitCode::kUsage : ExitCode::kOk);
  }
  const auto find = [&](const std::string& command) {
    return std::ranges::find(program.commands, command, &CommandEntry::name);
  };
  const auto none = program.commands.end();
  auto entry = find(name == "--version" || name == "-v" ? "version" : name);
  std::vector<std::string> rest(args.begin() + 1, args.end());
  if (entry == none && MeansDefault(program, name)) {
    entry = find(program.default_command);
    rest = args;
  }
  const bool json = WantsJson(rest);
  if (entry == none) return Report(program, UnknownCommand(program, name), json);
  if (entry->forward != nullptr) return entry->forward(rest);
  if (const absl::Status text = CheckText(rest); !text.ok()) return Report(program, text, json);
  return Report(program, ParseAndRun(program, *entry, NormalizeFlags(rest)), json);
}

// A command has at most this many threads beside those that it computes with.
constexpr int kMostThreadsOfACommand = 4;

// Made while there is memory.
std::string& OutOfMemoryText() {
  static std::string text;
  return text;
}

// On any thread, of which most have nobody to catch an exception.
void EndOutOfMemory() {
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, OutOfMemoryText().data(), OutOfMemoryText().size());
  ::_exit(static_cast<int>(ExitCode::kOutOfMemory));
}

void PrepareForFullMemory(const Program& program) {
  OutOfMemoryText() = fmt::format(
      "{}: error: out of memory. Free memory on this machine, raise the limit of the process "
      "('ulimit -v', cgroup), or {}\n",
      program.name, program.out_of_memory_advice);
  std::set_new_handler(EndOutOfMemory);
  // An arena for each thread maps 128 MiB to use a few.
  if (AddressSpaceIsLimited()) ::mallopt(M_ARENA_MAX, 1);
}

}  // namespace

std::vector<std::string> NormalizeFlags(const std::vector<std::string>& args) {
  std::vector<std::string> normalized = args;
  for (std::string& argument : normalized) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    const size_t end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin() + 2, argument.begin() + static_cast<ptrdiff_t>(end), '-', '_');
  }
  return normalized;
}

int RunCommandLine(const Program& program, const std::vector<std::string>& args) {
  OccupyStandardStreams();
  PrepareForFullMemory(program);
  // So that a file that may not be so large ('ulimit -f') is an error, which says so.
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    const absl::Status room = CheckAddressSpace(/*buffer_bytes=*/0, kMostThreadsOfACommand);
    if (!room.ok()) return Report(program, room, WantsJson(args));
    const int code = Dispatch(program, args);
    const absl::Status written = FlushResults();
    return code == static_cast<int>(ExitCode::kOk) ? Report(program, written, false) : code;
  } catch (const std::bad_alloc&) {
    PrintTo(stderr, "{}", OutOfMemoryText());
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const std::system_error& error) {
    PrintTo(stderr,
            "{}: error: no thread could be started ({}). Raise the limit ('ulimit -u', or pids.max "
            "of the container), or end other programs\n",
            program.name, error.what());
    return static_cast<int>(ExitCode::kEnvironment);
  } catch (const std::exception& error) {
    PrintTo(stderr, "{}: internal error: {}. This is a bug in forebay; please report it\n",
            program.name, error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace forebay
