#include "forebay/aio/open_engine.h"

#include <array>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine_probe.h"
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
                                                const std::string& folder) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Create(rung.kind, options));
  FOREBAY_RETURN_IF_ERROR(ProveEngine(*engine, folder));
  return engine;
}

std::string NoDirect(const std::string& folder, const std::string& why) {
  return fmt::format(
      "'{}' has no direct I/O ({}), so transfers go through the page cache at a cost in CPU. "
      "Choose a folder on ext4 or XFS on a local disk (--nvme)",
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

absl::StatusOr<OpenedEngine> OpenEngine(const EngineOptions& options, const std::string& folder) {
  std::string why_not_direct;
  if (options.engine != EngineKind::kBuffered) {
    FOREBAY_ASSIGN_OR_RETURN(const ScratchFile scratch, OpenScratchFile(folder, true));
    why_not_direct = scratch.why_not_direct;
  }
  // Why the rungs above were not taken. A folder without direct I/O explains them all.
  std::string why = why_not_direct.empty() ? "" : NoDirect(folder, why_not_direct);
  absl::Status last;
  for (const Rung& rung : kLadder) {
    if (options.engine != EngineKind::kAuto && rung.kind < options.engine) continue;
    if (rung.direct && !why_not_direct.empty()) continue;
    FOREBAY_RETURN_IF_ERROR(CheckStrict(options, rung, why));
    absl::StatusOr<std::unique_ptr<Engine>> engine = TryRung(rung, options, folder);
    if (engine.ok()) {
      OpenedEngine opened;
      opened.line = LineOf(**engine, rung, why);
      opened.kind = rung.kind;
      opened.engine = *std::move(engine);
      return opened;
    }
    last = engine.status();
    why += fmt::format("{}{}", why.empty() ? "" : "; ", MessageOf(last));
  }
  return Annotate(last, fmt::format("no I/O engine works in '{}'", folder));
}

}  // namespace forebay
