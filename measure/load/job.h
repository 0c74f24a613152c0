// What a benchmark is asked to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "forebay/aio/engine.h"

namespace forebay {

enum class LoadOp : uint8_t { kRead, kWrite, kMixed };
enum class AccessPattern : uint8_t { kSequential, kRandom };
enum class BenchPages : uint8_t { kTransparentHuge, kReservedHuge, kBase };
enum class FlushRule : uint8_t {
  kNone,    // no fdatasync at all
  kAtEnd,   // one behind each pass, timed apart
  kEveryN,  // and one behind every N writes, as part of the pass
};

// What is done at one time: read, write, or both.
struct LoadKind {
  LoadOp op = LoadOp::kRead;
  int read_percent = 100;  // of the operations; of kMixed alone, 1 to 99
  bool writes() const { return op != LoadOp::kRead; }
  bool operator==(const LoadKind&) const = default;
};

struct JobTarget {
  std::string directory;
  // The share of a striped load that goes here, in proportion to the others'; 0: its measured
  // bandwidth.
  double weight = 0;
};

// "steady state": the bandwidth of the last `window_s` changes by less than `max_trend` over it.
struct SteadyRule {
  double max_trend = 0.02;
  double window_s = 5;
};

struct Job {
  std::vector<JobTarget> targets;
  std::vector<LoadKind> loads = {{LoadOp::kRead, 100}, {LoadOp::kWrite, 0}, {LoadOp::kMixed, 50}};
  int64_t block_bytes = int64_t{1} << 20;  // of one operation
  int depth = 32;                          // operations in flight, on each target
  // The engine's own limits (EngineOptions), where they are not to follow from `depth`: operations
  // then wait in its queues, and it chooses among them. 0: not set.
  int64_t cap_bytes = 0;
  int64_t burst_bytes = 0;
  EngineKind engine = EngineKind::kAuto;
  bool strict = false;                    // no lesser engine
  int64_t size_bytes = int64_t{4} << 30;  // of the file on each target
  double seconds = 3;                     // measured, for each pass
  double warmup_s = 0.5;                  // before that
  std::optional<SteadyRule> steady;       // ends a pass early; `seconds` is the cap then
  int threads = 1;                        // each with an engine and a share of the depth
  bool fixed = true;                      // register buffers with io_uring
  BenchPages pages = BenchPages::kTransparentHuge;
  int numa_node = -1;  // of the buffers; -1: that of the (first) disk
  AccessPattern pattern = AccessPattern::kSequential;
  bool verify = false;
  FlushRule flush = FlushRule::kAtEnd;
  int flush_every = 0;  // of kEveryN
  int compressible_percent = 0;
  uint64_t seed = 1;
  int repeats = 3;
};

// What is measured together: a load, and the targets (indices) that it goes to at once.
struct BenchCell {
  LoadKind load;
  std::vector<int> targets;
};

// In flight in one engine at most: the depth of a ring.
inline constexpr int kMaxDepthPerThread = 128;

// UsageError naming everything that cannot be. Pure.
absl::Status CheckJob(const Job& job);
// The least size of the file on each target. No two operations in flight are at one place then,
// even where those of a striped load all wait for the slowest disk.
int64_t LeastFileBytes(const Job& job);

// "read", "write", "mixed"; "seq", "rand"; "thp", "huge", "4k".
std::string_view NameOf(LoadOp op);
std::string_view NameOf(AccessPattern pattern);
std::string_view NameOf(BenchPages pages);

}  // namespace forebay
