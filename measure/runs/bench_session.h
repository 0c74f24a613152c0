// The folders of a benchmark, opened: what the storage is, which engine works there, a filled file
// on each, buffers. Passes are run on it, with settings that may change from pass to pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/host/host_info.h"
#include "forebay/measure/load/bench_file.h"
#include "forebay/measure/load/block_pattern.h"
#include "forebay/measure/load/job.h"
#include "forebay/measure/load/pass.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {

struct BenchHooks {
  std::function<bool()> stop;  // asked often; true: end with InterruptedError
  // What goes on, how far it is (0 to 1), and the bandwidth of the moment in bytes per second.
  // Several times a second. May be empty.
  std::function<void(std::string_view phase, double fraction, double bytes_per_s)> progress;
  // Takes a line about a device that stalls; called by the threads that wait for it. May be empty.
  std::function<void(const std::string& line)> report;
  // Called after each pass of a cell, for who measures the same in turn by other means; its error
  // ends the run. May be empty.
  std::function<absl::Status(const BenchCell& cell)> beside;
};

struct BenchTarget {
  std::string directory;
  double weight = 0;
  StorageInfo storage;
  EngineKind engine = EngineKind::kAuto;
  std::string engine_line;  // OpenedEngine::line
  bool engine_as_asked = true;
  BenchFile file;
  double fill_bytes_per_s = 0;  // of the file, flushed
};

// Owned by one thread.
class BenchSession {
 public:
  // Checks the job, looks at every folder, makes the files and fills them. UsageError,
  // BadInputError, DoesNotFitError, StorageError, EnvironmentError (with `job.strict`),
  // OutOfMemoryError, InterruptedError.
  static absl::StatusOr<std::unique_ptr<BenchSession>> Open(const Job& job,
                                                            const BenchHooks& hooks);

  const std::vector<std::unique_ptr<BenchTarget>>& targets() const { return targets_; }
  // What makes the figures mean less than they seem to. Complete after Open.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The pages of the last pass's buffers.
  const PageTally& pages() const { return pages_; }
  // Their whole 2 MiB, each buffer's for itself: what could be in huge pages.
  int64_t huge_bytes() const;

  // Runs `load` as `job` says, which may differ from the session's in block, depth, threads, time,
  // pages and the like, but not in its files. `targets`: indices; several are striped in proportion
  // to `weights`. `engine`: kAuto takes the least of those that the targets have.
  absl::StatusOr<PassResult> Pass(const Job& job, const LoadKind& load,
                                  std::span<const int> targets, std::span<const double> weights,
                                  EngineKind engine, const BenchHooks& hooks);
  // Reads a whole file back and checks every block. Requires: the session's job verifies.
  absl::StatusOr<PatternTally> ReadBack(const Job& job, int target, const BenchHooks& hooks);

  // The rung of aio/open_engine.h that serves all of `targets`.
  EngineKind EngineOf(std::span<const int> targets) const;

 private:
  explicit BenchSession(const Job& job);
  absl::Status OpenTarget(const Job& job, const JobTarget& target);
  absl::Status Fill(const Job& job, BenchTarget& target, const BenchHooks& hooks);
  absl::Status PrepareMemory(const Job& job, int num_targets);
  void Warn(const Job& job, const BenchTarget& target);

  const BlockPattern pattern_;
  MemoryBudget budget_{0};
  std::vector<std::unique_ptr<BenchTarget>> targets_;
  std::vector<HostBuffer> memory_;  // of each load thread
  PageTally pages_;
  std::vector<std::string> warnings_;
};

// The memory that buffers in these pages can have: only those that are asked for get reserved ones.
// `root` stands for "/" in tests.
int64_t MemoryForBuffers(BenchPages pages, const std::string& root = "");

// Which file each operation of a striped load goes to, in turn: every file as often as its weight
// says, evenly spread. Requires: weights above 0.
std::vector<int> StripeOrder(std::span<const double> weights);

// What about a disk makes figures worse, or durability weaker, than people expect.
std::vector<std::string> StorageWarnings(const StorageInfo& storage);

}  // namespace forebay
