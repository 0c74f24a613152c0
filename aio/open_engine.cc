#include "forebay/aio/open_engine.h"

#include <array>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine_probe.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

struct Rung {
  EngineKind kind;
  bool direct;
};
constexpr std::array<Rung, 4> kLadder = {{{EngineKind::kIoUring, true},
                                          {EngineKind::kLibaio, true},
                                          {EngineKind::kThreads, true},
                                          {EngineKind::kBuffered, false}}};

absl::StatusOr<std::unique_ptr<Engine>> Create(EngineKind kind, EngineOptions options) {
  options.engine = kind;
  if (kind == EngineKind::kIoUring) return CreateIoUringEngine(options);
  if (kind == EngineKind::kLibaio) return CreateLibaioEngine(options);
  return CreateThreadsEngine(options);
}

absl::StatusOr<std::unique_ptr<Engine>> TryRung(const Rung& rung, const EngineOptions& options,
                                                const std::vector<std::string>& folders) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Create(rung.kind, options));
  for (const std::string& folder : folders) {
    FOREBAY_RETURN_IF_ERROR(
        ProveEngine(*engine, folder, options.file_to_read, options.offset_to_read_bytes));
  }
  return engine;
}

std::string NoDirect(const std::string& folder, const std::string& why) {
  return fmt::format(
      "'{}' has no direct I/O ({}), so transfers go through the page cache at a cost in CPU. "
      "Choose a folder on ext4 or XFS on a local disk (DIR of swap-bench, --nvme of forebay)",
      folder, why);
}

std::string LineOf(const Engine& engine, const Rung& rung, const std::string& why) {
  const std::string taken =
      fmt::format("{}, {}", engine.name(), rung.direct ? "direct I/O" : "through the page cache");
  return why.empty() ? taken : fmt::format("{}: {}", taken, why);
}

// OK, or why taking `rung` for `asked` is no less than what --engine_strict demands.
absl::Status CheckStrict(const EngineOptions& options, const Rung& rung, const std::string& why) {
  const EngineKind wanted =
      options.engine == EngineKind::kAuto ? EngineKind::kIoUring : options.engine;
  if (!options.strict || rung.kind == wanted) return absl::OkStatus();
  return EnvironmentError(
      fmt::format("aio: {} cannot be used here, and --engine_strict forbids a lesser engine: {}",
                  NameOf(wanted), why));
}

}  // namespace

absl::StatusOr<OpenedEngine> OpenEngine(const EngineOptions& options,
                                        const std::vector<std::string>& folders) {
  FOREBAY_CHECK(!folders.empty());
  // Why the rungs above were not taken. A folder without direct I/O explains them all.
  std::string why;
  for (const std::string& folder : folders) {
    if (options.engine == EngineKind::kBuffered || !why.empty()) break;
    FOREBAY_ASSIGN_OR_RETURN(const std::string why_not,
                             WhyNoDirectIo(folder, options.file_to_read));
    if (!why_not.empty()) why = NoDirect(folder, why_not);
  }
  const bool has_direct = why.empty();
  absl::Status last;
  for (const Rung& rung : kLadder) {
    if (options.engine != EngineKind::kAuto && rung.kind < options.engine) continue;
    if (rung.direct && !has_direct) continue;
    FOREBAY_RETURN_IF_ERROR(CheckStrict(options, rung, why));
    absl::StatusOr<std::unique_ptr<Engine>> engine = TryRung(rung, options, folders);
    if (engine.ok()) {
      OpenedEngine opened;
      opened.line = LineOf(**engine, rung, why);
      opened.kind = rung.kind;
      opened.engine = *std::move(engine);
      return opened;
    }
    last = engine.status();
    // Another engine would need the same room.
    if (ExitCodeOf(last) == ExitCode::kDoesNotFit) return last;
    why += fmt::format("{}{}", why.empty() ? "" : "; ", MessageOf(last));
  }
  return Annotate(last, fmt::format("no I/O engine works in '{}'", fmt::join(folders, "', '")));
}

}  // namespace forebay
