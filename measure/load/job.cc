#include "forebay/measure/load/job.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

constexpr int kMaxThreads = 64;

// Collects what is wrong, so that it is all said at once.
class Problems {
 public:
  void Unless(bool good, const std::string& problem) {
    if (!good) text_ += fmt::format("{}{}", text_.empty() ? "" : "\n  ", problem);
  }
  absl::Status status() const { return text_.empty() ? absl::OkStatus() : UsageError(text_); }

 private:
  std::string text_;
};

void CheckSizes(const Job& job, Problems& problems) {
  const bool block_fits = job.block_bytes >= kIoAlignBytes &&
                          job.block_bytes % kIoAlignBytes == 0 &&
                          job.block_bytes <= int64_t{1} << 30;
  problems.Unless(block_fits,
                  fmt::format("--bs is {}; allowed: a multiple of 4096 up to 1G", job.block_bytes));
  problems.Unless(job.size_bytes > 0, "--size is 0; a file to measure with takes some, such as 4G");
  const auto num_targets = static_cast<int64_t>(job.targets.size());
  // A striped load has all targets in flight at once.
  const int64_t max_depth =
      int64_t{kMaxDepthPerThread} * job.threads / std::max<int64_t>(1, num_targets);
  problems.Unless(
      job.depth >= 1 && job.depth <= max_depth,
      fmt::format("--qd is {}; allowed: 1 to {}, as each of --threads keeps at most {} "
                  "operations in flight over all folders (--qd, or --inflight over --bs)",
                  job.depth, max_depth, kMaxDepthPerThread));
  if (!block_fits || job.size_bytes <= 0 || job.depth < 1 || job.depth > max_depth) return;
  const int64_t least_bytes = LeastFileBytes(job);
  const int64_t num_operations = job.depth * std::max<int64_t>(1, num_targets);
  problems.Unless(
      job.size_bytes >= least_bytes,
      fmt::format("--size is {}, but {} operation{} of {} in flight need a file of {}, twice as "
                  "much, or more: take --size={} or smaller --bs and --qd",
                  FormatBinaryBytes(job.size_bytes), num_operations, num_operations == 1 ? "" : "s",
                  FormatBinaryBytes(job.block_bytes), FormatBinaryBytes(least_bytes),
                  SizeText(least_bytes)));
}

}  // namespace

absl::Status CheckJob(const Job& job) {
  Problems problems;
  problems.Unless(!job.targets.empty(), "no folder is given: swap-bench DIR");
  for (const JobTarget& target : job.targets) {
    problems.Unless(std::isfinite(target.weight) && target.weight >= 0,
                    fmt::format("the weight of '{}' is {}; allowed: a number above 0",
                                target.directory, target.weight));
  }
  problems.Unless(!job.loads.empty(),
                  "--op is empty; allowed: read, write, mixed or mixed=PERCENT");
  problems.Unless(job.threads >= 1 && job.threads <= kMaxThreads,
                  fmt::format("--threads is {}; allowed: 1 to {}", job.threads, kMaxThreads));
  if (job.threads >= 1 && job.threads <= kMaxThreads) {
    problems.Unless(job.threads <= job.depth,
                    fmt::format("--threads is {}, but no more than {} operation{} in flight (--qd)",
                                job.threads, job.depth, job.depth == 1 ? " is" : "s are"));
    CheckSizes(job, problems);
  }
  problems.Unless(job.seconds > 0 && job.seconds <= 86400,
                  fmt::format("--time is {} s; allowed: above 0 to 24h", job.seconds));
  problems.Unless(!job.steady.has_value() || job.steady->window_s <= job.seconds,
                  fmt::format("--steady looks at {} s, which --time={}s never reaches: take a "
                              "longer --time or a shorter window",
                              job.steady.value_or(SteadyRule()).window_s, job.seconds));
  problems.Unless(job.warmup_s >= 0 && job.warmup_s <= 3600,
                  fmt::format("--warmup is {} s; allowed: 0 to 1h", job.warmup_s));
  problems.Unless(job.repeats >= 1 && job.repeats <= 1000,
                  fmt::format("--repeats is {}; allowed: 1 to 1000", job.repeats));
  problems.Unless(
      job.compressible_percent >= 0 && job.compressible_percent <= 90,
      fmt::format("--fill=compressible={}; allowed: 0 to 90", job.compressible_percent));
  problems.Unless(job.flush != FlushRule::kEveryN || job.flush_every >= 1,
                  fmt::format("--flush=every={}; allowed: 1 or more writes", job.flush_every));
  return problems.status();
}

int64_t LeastFileBytes(const Job& job) {
  return 2 * job.block_bytes * job.depth *
         std::max<int64_t>(1, static_cast<int64_t>(job.targets.size()));
}

std::string_view NameOf(LoadOp op) {
  switch (op) {
    case LoadOp::kRead:
      return "read";
    case LoadOp::kWrite:
      return "write";
    case LoadOp::kMixed:
      return "mixed";
  }
  return "unknown";
}

std::string_view NameOf(AccessPattern pattern) {
  return pattern == AccessPattern::kSequential ? "seq" : "rand";
}

std::string_view NameOf(BenchPages pages) {
  switch (pages) {
    case BenchPages::kTransparentHuge:
      return "thp";
    case BenchPages::kReservedHuge:
      return "huge";
    case BenchPages::kBase:
      return "4k";
  }
  return "unknown";
}

}  // namespace forebay
