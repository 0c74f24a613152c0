#include "forebay/measure/runs/run_job.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

// One cell on its way through the repeats.
struct CellProgress {
  CellSetting setting;
  std::vector<PassResult> passes;
  PatternTally read_back;
};

std::string DeviceOf(const BenchSession& session, const std::vector<int>& targets) {
  std::string device;
  for (const int target : targets) {
    device +=
        (device.empty() ? "" : "+") + session.targets()[static_cast<size_t>(target)]->directory;
  }
  return device;
}

// Bandwidth that the same load reached on one target alone, in the passes so far; 0: none.
double MeasuredAlone(const std::vector<CellProgress>& all, const LoadKind& load, int target) {
  for (const CellProgress& progress : all) {
    const BenchCell& cell = progress.setting.cell;
    if (cell.targets.size() != 1 || cell.targets[0] != target) continue;
    if (cell.load == load && !progress.passes.empty()) {
      return progress.passes.back().bytes_per_s();
    }
  }
  return 0;
}

// Of a striped load: what was asked for, else what was measured, else equal.
std::vector<double> WeightsOf(const BenchSession& session, const std::vector<CellProgress>& all,
                              const BenchCell& cell) {
  std::vector<double> weights;
  for (const int target : cell.targets) {
    const double asked = session.targets()[static_cast<size_t>(target)]->weight;
    weights.push_back(asked > 0 ? asked : MeasuredAlone(all, cell.load, target));
  }
  const bool all_known = std::ranges::all_of(weights, [](double weight) { return weight > 0; });
  if (!all_known) std::ranges::fill(weights, 1.0);
  return weights;
}

absl::Status RunOnce(BenchSession& session, const std::vector<CellProgress>& all,
                     CellProgress& progress, const BenchHooks& hooks) {
  const auto& [job, cell, engine] = progress.setting;
  const std::vector<double> weights = WeightsOf(session, all, cell);
  FOREBAY_ASSIGN_OR_RETURN(PassResult pass,
                           session.Pass(job, cell.load, cell.targets, weights, engine, hooks));
  progress.passes.push_back(std::move(pass));
  if (hooks.beside) FOREBAY_RETURN_IF_ERROR(hooks.beside(cell));
  if (!job.verify || !cell.load.writes()) return absl::OkStatus();
  for (const int target : cell.targets) {
    FOREBAY_ASSIGN_OR_RETURN(const PatternTally tally, session.ReadBack(job, target, hooks));
    progress.read_back.Add(tally);
  }
  return absl::OkStatus();
}

// What of the job, not of the device, sets the pace.
std::string HeldBackBy(const Job& job, const LoadKind& load) {
  if (job.verify && load.writes()) return "the checksums of --verify, made between operations";
  if (job.flush == FlushRule::kEveryN && load.writes()) {
    return fmt::format("--flush=every={}, for which writes wait", job.flush_every);
  }
  if (job.depth == 1) return "one operation in flight at a time (--qd=1)";
  return "";
}

CellResult ResultOf(const BenchSession& session, const CellProgress& progress) {
  CellResult result = Summarize(progress.passes);
  const auto& [job, cell, asked] = progress.setting;
  const EngineKind engine = asked == EngineKind::kAuto ? session.EngineOf(cell.targets) : asked;
  result.key = {
      DeviceOf(session, cell.targets), cell.load,      job.block_bytes, job.block_bytes * job.depth,
      std::string(NameOf(engine)),     job.burst_bytes};
  result.held_back_by = HeldBackBy(job, cell.load);
  result.threads = job.threads;
  result.num_files = static_cast<int>(cell.targets.size());
  result.fixed = job.fixed && engine == EngineKind::kIoUring &&
                 std::ranges::all_of(progress.passes, [](const PassResult& pass) {
                   return pass.not_registered.empty();
                 });
  const PageTally& pages = session.pages();
  const bool huge = pages.transparent_huge_bytes + pages.reserved_huge_bytes > pages.base_bytes;
  result.pages = !huge                                                      ? "4k"
                 : pages.reserved_huge_bytes > pages.transparent_huge_bytes ? "huge"
                                                                            : "thp";
  result.pattern = NameOf(job.pattern);
  if (!pages.missed_reason.empty()) {
    result.reasons.push_back("pages of 4 KiB: " + pages.missed_reason);
  }
  const std::string missing = MissingHugePages(session.huge_bytes(), pages.reserved_huge_bytes);
  if (job.pages == BenchPages::kReservedHuge && !missing.empty()) result.reasons.push_back(missing);
  if (!pages.note.empty()) result.reasons.push_back(pages.note);
  for (const int target : cell.targets) {
    const BenchTarget& at = *session.targets()[static_cast<size_t>(target)];
    if (at.storage.in_memory()) ++result.num_files_in_memory;
    if (!at.engine_as_asked) result.reasons.push_back("fell back to " + at.engine_line);
  }
  if (job.steady.has_value()) {
    result.steady_repeats = static_cast<int>(
        std::ranges::count_if(progress.passes, [](const PassResult& pass) { return pass.steady; }));
  }
  if (job.verify) {
    PatternTally verified = progress.read_back;
    for (const PassResult& pass : progress.passes) verified.Add(pass.verified);
    result.verified = verified;
  }
  result.verdict = VerdictOf(result, AskHost().num_cores);
  return result;
}

}  // namespace

BenchReport BeginReport(const Job& job, const BenchSession& session) {
  BenchReport report;
  report.host = AskHost();
  report.job = job;
  for (const auto& target : session.targets()) {
    report.devices.push_back(target->storage);
    report.engine_lines.push_back(target->engine_line);
    report.filled_bytes += target->file.size_bytes();
  }
  report.warnings = session.warnings();
  return report;
}

void NoteHeat(BenchReport& report) {
  for (StorageInfo& storage : report.devices) {
    if (storage.heat.has_value()) storage.heat_afterwards = HeatOf(storage.device_folder);
    const auto& heat = storage.heat_afterwards;
    // What was too warm before is among the warnings already.
    if (!heat.has_value() || storage.heat->too_warm()) continue;
    const std::string warning = HeatWarning(*heat, storage.device);
    if (!warning.empty()) report.warnings.push_back(fmt::format("{}: {}", storage.path, warning));
  }
}

int64_t WrittenBytes(const BenchReport& report) {
  int64_t bytes = report.filled_bytes;
  for (const CellResult& run : report.runs) bytes += run.written_bytes;
  return bytes;
}

std::vector<BenchCell> CellsOf(const Job& job) {
  std::vector<BenchCell> cells;
  for (const LoadKind& load : job.loads) {
    std::vector<int> all;
    for (int target = 0; target < static_cast<int>(job.targets.size()); ++target) {
      cells.push_back({load, {target}});
      all.push_back(target);
    }
    if (all.size() > 1) cells.push_back({load, all});
  }
  return cells;
}

absl::StatusOr<std::vector<CellResult>> RunCells(BenchSession& session, const Job& job,
                                                 const std::vector<BenchCell>& cells,
                                                 EngineKind engine, const BenchHooks& hooks) {
  std::vector<CellSetting> settings;
  for (const BenchCell& cell : cells) settings.push_back({job, cell, engine});
  int turn = 0;
  return RunInTurns(
      session, std::move(settings), [&](auto&) { return turn++ < job.repeats; }, hooks);
}

absl::StatusOr<std::vector<CellResult>> RunInTurns(
    BenchSession& session, std::vector<CellSetting> settings,
    const std::function<bool(std::vector<CellSetting>&)>& begin_turn, const BenchHooks& hooks) {
  std::vector<CellProgress> all(settings.size());
  while (begin_turn(settings)) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].setting = settings[i];
      FOREBAY_RETURN_IF_ERROR(RunOnce(session, all, all[i], hooks));
    }
  }
  std::vector<CellResult> results;
  for (const CellProgress& progress : all) {
    if (!progress.passes.empty()) results.push_back(ResultOf(session, progress));
  }
  return results;
}

absl::StatusOr<BenchReport> RunJob(const Job& job, const BenchHooks& hooks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSession> session,
                           BenchSession::Open(job, hooks));
  BenchReport report = BeginReport(job, *session);
  FOREBAY_ASSIGN_OR_RETURN(report.runs,
                           RunCells(*session, job, CellsOf(job), EngineKind::kAuto, hooks));
  NoteHeat(report);
  return report;
}

std::string MissingHugePages(int64_t huge_bytes, int64_t reserved_bytes) {
  const int64_t missing_bytes = huge_bytes - reserved_bytes;
  if (missing_bytes <= 0) return "";
  const int64_t num_pages = missing_bytes / kHugePageBytes;
  return fmt::format(
      "buffers: {} of {} are not in reserved huge pages: there are too few. Reserve {} page{} more "
      "in vm.nr_hugepages (sysctl, as root)",
      FormatBinaryBytes(missing_bytes), FormatBinaryBytes(huge_bytes), num_pages,
      num_pages == 1 ? "" : "s");
}

absl::Status CheckVerified(const BenchReport& report) {
  for (const CellResult& run : report.runs) {
    if (!run.verified.has_value() || run.verified->num_bad() == 0) continue;
    return CorruptError(
        fmt::format("'{}' gave back {} of {} blocks other than they were written ({}): {}. Do not "
                    "keep anything "
                    "on this disk; look at 'dmesg' and its health (smartctl -a)",
                    run.key.device, run.verified->num_bad(), run.verified->num_blocks,
                    LoadName(run.key.load), run.verified->first_problem));
  }
  return absl::OkStatus();
}

}  // namespace forebay
