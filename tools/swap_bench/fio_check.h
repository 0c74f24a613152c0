// The same load through fio, where it is installed: a second opinion from a program that everybody
// knows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/runs/run_job.h"

namespace forebay {

// EnvironmentError when fio is not in PATH, InterruptedError when a stop was asked for meanwhile.
absl::Status CheckFioInstalled();

// One pass of fio over the session's own files. Remembers the results. Owned by one thread.
class FioCheck {
 public:
  FioCheck(const BenchSession& session, const Job& job) : session_(session), job_(job) {}

  // Runs `cell` once. Striped cells and the buffered engine are left out: fio has neither.
  // EnvironmentError when fio fails.
  absl::Status Run(const BenchCell& cell);
  // Puts what was measured beside what swap-bench measured. `runs`: in the order of `cells`.
  void AddTo(const std::vector<BenchCell>& cells, std::vector<CellResult>& runs) const;

 private:
  struct Measured {
    BenchCell cell;
    std::vector<double> gbps;
    std::string pages;
  };

  const BenchSession& session_;
  const Job& job_;
  std::vector<Measured> measured_;
};

// "fio read /nvme: 1.61 GB/s (1.58..1.65), in 4 KiB pages; swap-bench has 0.980 of it", a line for
// each run that has such figures.
std::string FioText(const std::vector<CellResult>& runs);

struct FioOutcome {
  int exit_code = -1;
  std::string output;
  bool huge_pages = false;  // its buffers lay in reserved huge pages
};
// Runs fio through `run`, with buffers in reserved huge pages or without. If it fails with them, it
// runs once more without: other programs may have taken the pages in the meantime. Errors of `run`;
// EnvironmentError, with fio's own words, when it fails.
absl::StatusOr<FioOutcome> RunInPages(bool huge_pages,
                                      const std::function<absl::StatusOr<FioOutcome>(bool)>& run);

// The command line of fio for one target's file. `huge_pages`: with buffers in reserved huge pages.
std::vector<std::string> FioArguments(const Job& job, const LoadKind& load, EngineKind engine,
                                      const std::string& path, int64_t size_bytes, bool huge_pages);
// Bytes per second, reads and writes together, of fio's JSON.
absl::StatusOr<double> FioBytesPerSecond(const std::string& output);

}  // namespace forebay
