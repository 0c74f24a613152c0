#include "forebay/tools/command_line.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"

namespace forebay {
namespace {

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
  fmt::print(stderr, "{}: {}{}\n", program.name, interrupted ? "" : "error: ", MessageOf(status));
  if (json) {
    const Json error = {{"error", {{"message", MessageOf(status)}, {"exit_code", code}}}};
    // Paths in messages may hold any bytes.
    fmt::print("{}\n", error.dump(-1, ' ', false, Json::error_handler_t::replace));
    std::fflush(stdout);
  }
  return code;
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

absl::Status UnknownArguments(const Program& program, const CLI::App& app,
                              const std::vector<std::string>& flags,
                              const std::vector<std::string>& rest) {
  std::string message;
  for (const std::string& flag : flags) {
    const std::string name = flag.substr(0, flag.find('=')).substr(2);
    const std::string nearest = NearestName(name, FlagNames(app));
    message += fmt::format("{}unknown flag '{}'{}", message.empty() ? "" : "\n  ", flag,
                           nearest.empty() ? "" : fmt::format("; did you mean '--{}'?", nearest));
  }
  if (message.empty()) message = fmt::format("unexpected argument '{}'", rest.front());
  return UsageError(
      message + fmt::format("\n  '{} {} --help' lists all flags", program.name, app.get_name()));
}

// Parses and runs one command. CLI11 reports by exceptions; they end here.
absl::Status ParseAndRun(const Program& program, const CommandEntry& entry,
                         std::vector<std::string> args) {
  CLI::App app(entry.summary, entry.name);
  app.allow_extras();
  app.get_formatter()->column_width(34);
  app.footer(fmt::format("\nExample:\n  {}\n\n{}", entry.example, program.exit_codes));
  const std::unique_ptr<Command> command = entry.make();
  command->Declare(app);
  const std::string formats = fmt::format("{}", fmt::join(program.formats, "|"));
  std::string format = program.formats.front();
  app.add_option("--format", format, fmt::format("of results and errors (default: {})", format))
      ->type_name(formats)
      ->take_last();
  std::ranges::reverse(args);  // as CLI11 wants them
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return absl::OkStatus();
  } catch (const CLI::RequiredError& error) {
    // A required flag that was mistyped is both missing and unknown; the typing error says more.
    const std::vector<std::string> flags = UnknownFlags(app);
    if (!flags.empty()) return UnknownArguments(program, app, flags, app.remaining());
    return UsageError(
        fmt::format("{}. '{} {} --help' lists all flags", error.what(), program.name, entry.name));
  } catch (const CLI::ParseError& error) {
    return UsageError(
        fmt::format("{}. '{} {} --help' lists all flags", error.what(), program.name, entry.name));
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
    return UnknownArguments(program, app, context.unknown_flags, rest);
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
  if (name.empty() || name == "help" || name == "--help" || name == "-h") {
    fmt::print(name.empty() ? stderr : stdout, "{}", Overview(program));
    return static_cast<int>(name.empty() ? ExitCode::kUsage : ExitCode::kOk);
  }
  const auto find = [&](const std::string& command) {
    return std::ranges::find(program.commands, command, &CommandEntry::name);
  };
  const auto none = program.commands.end();
  auto entry = find(name == "--version" ? "version" : name);
  if (name == "--version" && entry == none) {
    fmt::print("{} {}\n", program.name, program.version);
    return static_cast<int>(ExitCode::kOk);
  }
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
  try {
    return Dispatch(program, args);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: error: out of memory. Free memory on this machine, or {}\n",
               program.name, program.out_of_memory_advice);
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: internal error: {}. This is a bug in forebay; please report it\n",
               program.name, error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace forebay
