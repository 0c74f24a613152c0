// One thread of a pass: an engine of its own, and as many operations in flight as its share of the
// depth, each replaced by the next as soon as it completes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "forebay/aio/buffer_registration.h"
#include "forebay/aio/engine.h"
#include "forebay/measure/load/bench_file.h"
#include "forebay/measure/load/block_pattern.h"
#include "forebay/measure/load/job.h"
#include "forebay/measure/load/latency_histogram.h"
#include "forebay/measure/load/load_clock.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {

// What all threads of a pass do. Borrows all that it names.
struct LoadPlan {
  const Job* job = nullptr;
  LoadKind load;
  EngineKind engine = EngineKind::kAuto;  // never kAuto when a thread begins
  std::vector<BenchFile*> files;
  std::vector<int> stripe;  // files in the order of their turns; one file: {0}
  const BlockPattern* pattern = nullptr;
  // Takes a line about a device that stalls (EngineOptions::report). May be empty.
  std::function<void(const std::string& line)> report;
  // Instead of MakeEngineOf, for tests on disks that misbehave.
  std::function<absl::StatusOr<std::unique_ptr<Engine>>(const EngineOptions& options)> make_engine;
};

// What one thread moved.
struct LoadTally {
  // Within the measured time.
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  LatencyHistogram latency;
  // Warm-up and drain included: what the kernel's counters are compared with.
  int64_t all_read_bytes = 0;
  int64_t all_write_bytes = 0;
  int64_t all_read_ops = 0;
  int64_t all_write_ops = 0;
  // The calling thread's own, as far as the kernel tells. io_uring's workers moved the other bytes.
  int64_t own_bytes = -1;
  int64_t submit_ns = 0;
  int64_t submitted_calls = 0;
  PatternTally verified;
  RegistrationGap registration;  // of the buffers that were to be registered
};

// An engine of `kind` with these settings: the rungs of aio/open_engine.h without proving them.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngineOf(EngineKind kind, EngineOptions options);
// The settings of a job's engines that move `depth` operations at a time on each device.
EngineOptions EngineOptionsOf(const Job& job, int depth);

// Owned by the thread that calls Open.
class LoadThread {
 public:
  // Thread `index` of `job.threads`. `memory`: its own, with a block for each of its operations.
  LoadThread(const LoadPlan& plan, LoadClock& clock, int index, const HostBuffer& memory);
  ~LoadThread();

  // Its share of the depth of `job`, on each target.
  static int Depth(const Job& job, int index);

  absl::Status Open();
  // From the start to the drain; nothing is in flight when it returns. The first error of any
  // operation.
  absl::Status Run();
  // One fdatasync of every file. Requires: Run returned.
  absl::Status Flush();
  const LoadTally& tally() const { return tally_; }

 private:
  struct Slot;
  // The part of a file that this thread works on, in blocks.
  struct Region {
    BenchFile* file = nullptr;
    int number = -1;  // of the engine
    int64_t first = 0;
    int64_t count = 0;
    int64_t next_read = 0;
    int64_t next_write = 0;
    std::vector<char> busy;  // blocks that are in flight
    int64_t num_busy = 0;
  };

  void OpenRegion(BenchFile& file, int number);
  absl::Status CheckBlocks(size_t num_operations) const;
  Region& NextRegion();
  int64_t TakeBlock(Region& region, IoKind kind);
  IoKind NextKind();
  void Start(Slot& slot);
  absl::Status Finish(Slot& slot, int64_t now_ns);
  absl::Status Keep();
  absl::Status FlushWhenDue();
  void CountSubmissions();

  const LoadPlan& plan_;
  const Job& job_;
  LoadClock& clock_;
  const int index_;
  const HostBuffer& memory_;
  std::unique_ptr<Engine> engine_;
  std::vector<Region> regions_;
  std::unique_ptr<Slot[]> slots_;
  std::vector<IoOp*> ops_;
  BufferRegistration registration_;
  size_t next_turn_ = 0;  // of the stripe
  int mix_ = 0;           // read percents not used up
  uint64_t num_random_ = 0;
  int64_t writes_since_flush_ = 0;
  LoadTally tally_;
};

}  // namespace forebay
