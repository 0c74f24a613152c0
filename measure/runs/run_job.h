// The benchmark as `swap-bench run` does it: every load on every folder alone and, where there are
// several, on all of them striped, in interleaved repeats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/host/host_info.h"
#include "forebay/measure/load/job.h"
#include "forebay/measure/runs/bench_session.h"
#include "forebay/measure/runs/cell_result.h"

namespace forebay {

struct BenchReport {
  HostInfo host;
  std::vector<StorageInfo> devices;
  // By device: the rung of the engines' ladder, and why. Empty where the report says that
  // elsewhere.
  std::vector<std::string> engine_lines;
  Job job;
  std::vector<CellResult> runs;
  int64_t filled_bytes = 0;  // written before the runs: the files
  std::vector<std::string> warnings;
  // A search has so many seconds for each folder. It gives every pass a depth and a time of its
  // own, in place of the job's.
  std::optional<double> budget_s;
};

// A report of a session that has no runs yet.
BenchReport BeginReport(const Job& job, const BenchSession& session);

// Once all is measured: how warm the drives have become, and a warning of those that slow down.
void NoteHeat(BenchReport& report);

// What all of it wrote, for whom a drive's life is finite: the files and every pass. Without fio's.
int64_t WrittenBytes(const BenchReport& report);

std::vector<BenchCell> CellsOf(const Job& job);

// Runs every cell once, then every cell again, `job.repeats` times: the disk and the machine drift,
// and so all cells have their share of it. `engine`: kAuto takes what the session found to work. A
// result for each cell, verdict included. Errors of BenchSession::Pass and ReadBack.
absl::StatusOr<std::vector<CellResult>> RunCells(BenchSession& session, const Job& job,
                                                 const std::vector<BenchCell>& cells,
                                                 EngineKind engine, const BenchHooks& hooks);

// A cell with settings of its own. `engine`: kAuto takes what the session found to work.
struct CellSetting {
  Job job;
  BenchCell cell;
  EngineKind engine = EngineKind::kAuto;
};

// The same for cells that differ in their settings: all once, then all again, until `begin_turn`,
// which is asked before each turn and may change their times, says that it is enough. Empty where
// it never lets any begin.
absl::StatusOr<std::vector<CellResult>> RunInTurns(
    BenchSession& session, std::vector<CellSetting> settings,
    const std::function<bool(std::vector<CellSetting>&)>& begin_turn, const BenchHooks& hooks);

// Opens a session and runs all cells of `job`. Errors of BenchSession::Open and RunCells. What the
// disk gave back wrong is no error but in the results.
absl::StatusOr<BenchReport> RunJob(const Job& job, const BenchHooks& hooks);

// What to do where buffers of `huge_bytes`, their whole 2 MiB, are in `reserved_bytes` of reserved
// huge pages, though all were to be: "" when nothing is missing.
std::string MissingHugePages(int64_t huge_bytes, int64_t reserved_bytes);

// CorruptError when a block of any run was not as it was written.
absl::Status CheckVerified(const BenchReport& report);

}  // namespace forebay
