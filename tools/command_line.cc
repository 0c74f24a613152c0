#include "forebay/tools/command_line.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/tools/command.h"

namespace forebay {
namespace {

constexpr char kDataName[] = "data";
constexpr char kDataSummary[] = "show, check and pack training data";

std::vector<std::string> CommandNames() {
  std::vector<std::string> names = {kDataName, "help"};
  for (const CommandEntry& entry : Commands()) names.push_back(entry.name);
  return names;
}

std::string Overview() {
  std::string text =
      "forebay trains language models whose state is larger than RAM: weights and optimizer state "
      "live on NVMe\n"
      "and stream through memory layer by layer.\n\nUsage: forebay COMMAND [FLAGS]\n\nCommands:\n";
  for (const CommandEntry& entry : Commands()) {
    text += fmt::format("  {:<10}{}\n", entry.name, entry.summary);
    if (entry.name == "train") text += fmt::format("  {:<10}{}\n", kDataName, kDataSummary);
  }
  return text +
         "\n'forebay COMMAND --help' lists the flags of a command; hyphens and underscores are the "
         "same in them.\n\n" +
         ExitCodeHelp();
}

bool WantsJson(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--format=json") return true;
    if (args[i] == "--format" && i + 1 < args.size() && args[i + 1] == "json") return true;
  }
  return false;
}

// Prints `status` when it is an error and returns its exit code.
int Report(const absl::Status& status, bool json) {
  if (status.ok()) return static_cast<int>(ExitCode::kOk);
  const int code = static_cast<int>(ExitCodeOf(status));
  const bool interrupted = ExitCodeOf(status) == ExitCode::kInterrupted;
  std::fflush(stdout);
  fmt::print(stderr, "forebay: {}{}\n", interrupted ? "" : "error: ", MessageOf(status));
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
  return UsageError(message +
                    fmt::format("\n  'forebay {} --help' lists all flags", app.get_name()));
}

// Parses and runs one command. CLI11 reports by exceptions; they end here.
absl::Status ParseAndRun(const CommandEntry& entry, std::vector<std::string> args) {
  CLI::App app(entry.summary, entry.name);
  app.allow_extras();
  app.get_formatter()->column_width(34);
  app.footer(fmt::format("\nExample:\n  {}\n\n{}", entry.example, ExitCodeHelp()));
  const std::unique_ptr<Command> command = entry.make();
  command->Declare(app);
  std::string format = "text";
  app.add_option("--format", format, "of results and errors (default: text)")
      ->type_name("text|json")
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
    if (!flags.empty()) return UnknownArguments(app, flags, app.remaining());
    return UsageError(
        fmt::format("{}. 'forebay {} --help' lists all flags", error.what(), entry.name));
  } catch (const CLI::ParseError& error) {
    return UsageError(
        fmt::format("{}. 'forebay {} --help' lists all flags", error.what(), entry.name));
  }
  if (format != "text" && format != "json") {
    return UsageError(fmt::format("--format is '{}'; allowed: text or json", format));
  }
  CommandContext context;
  context.json = format == "json";
  const std::vector<std::string> rest = app.remaining();
  context.unknown_flags = UnknownFlags(app);
  if (!rest.empty() && (context.unknown_flags.empty() || !command->ReportsUnknownFlags())) {
    return UnknownArguments(app, context.unknown_flags, rest);
  }
  return command->Run(context);
}

absl::Status UnknownCommand(const std::string& name) {
  const std::string nearest = NearestName(name, CommandNames());
  return UsageError(
      fmt::format("unknown command '{}'{}\n  'forebay --help' lists all commands", name,
                  nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
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

int Dispatch(const std::vector<std::string>& args) {
  const std::string name = args.empty() ? "" : args[0];
  if (name.empty() || name == "help" || name == "--help" || name == "-h") {
    fmt::print(name.empty() ? stderr : stdout, "{}", Overview());
    return static_cast<int>(name.empty() ? ExitCode::kUsage : ExitCode::kOk);
  }
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (name == kDataName) return RunDataCommand(rest);
  const std::string command = name == "--version" ? "version" : name;
  const auto entry = std::ranges::find(Commands(), command, &CommandEntry::name);
  const bool json = WantsJson(rest);
  if (entry == Commands().end()) return Report(UnknownCommand(name), json);
  if (const absl::Status text = CheckText(rest); !text.ok()) return Report(text, json);
  return Report(ParseAndRun(*entry, NormalizeFlags(rest)), json);
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

std::string ExitCodeHelp() {
  return "Exit codes:\n"
         "  0 done   1 internal error (please report)   2 command line or configuration\n"
         "  3 model or data invalid   4 does not fit (memory or disk; nothing was started)\n"
         "  5 storage I/O failed   6 out of memory   7 numerical failure\n"
         "  8 checkpoint or store corrupt or incompatible   9 environment (missing program, run in "
         "use)\n"
         "  75 stopped on request, resumable   130 ended at once by a second signal\n";
}

int RunCommandLine(const std::vector<std::string>& args) {
  try {
    return Dispatch(args);
  } catch (const std::bad_alloc&) {
    fmt::print(
        stderr,
        "forebay: error: out of memory. Free memory on this machine, or use a smaller --ram\n");
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const std::exception& error) {
    fmt::print(stderr, "forebay: internal error: {}. This is a bug in forebay; please report it\n",
               error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace forebay
