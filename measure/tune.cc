#include "forebay/measure/tune.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr size_t kReads = 0;
constexpr size_t kWrites = 1;
// As a step of the bf16 layout reads and writes: 14 and 12 bytes per parameter.
constexpr LoadKind kMixed = {LoadOp::kMixed, 54};
// Of the budget: for the passes with mixed loads.
constexpr double kBurstShare = 0.2;
constexpr double kLeastBurstPassS = 0.1;

// The least budget for one folder.
double LeastTuneS(const Job& job, const TuneOptions& options) {
  return std::max(LeastSweepS(job, options.sweep) / (1 - kBurstShare),
                  kLeastBurstPassS * static_cast<double>(options.burst_bytes.size()) / kBurstShare);
}

class Tuner {
 public:
  Tuner(TargetRuns target, const Job& job, const TuneOptions& options)
      : target_(target), job_(job), options_(options) {
    // The one that the trainer's ladder takes.
    job_.engine = target_.folder().engine;
    job_.targets.resize(1);  // one folder at a time
  }

  absl::StatusOr<DeviceProfile> Run() {
    DeviceProfile device;
    device.directory = target_.folder().directory;
    FOREBAY_ASSIGN_OR_RETURN(device.key, AskDeviceKey(device.directory));
    const size_t first_run = target_.runs.size();
    FOREBAY_ASSIGN_OR_RETURN(
        const SweepBest best,
        SweepTarget(target_, job_, options_.sweep, options_.budget_s * (1 - kBurstShare)));
    device.engine = best.best.engine;
    device.block_bytes = best.best.block_bytes;
    const SweepPoint& reads = KneeOfLoad(best.points, device.engine, device.block_bytes, kReads);
    const SweepPoint& writes = KneeOfLoad(best.points, device.engine, device.block_bytes, kWrites);
    device.inflight_read_bytes = reads.inflight_bytes;
    device.inflight_write_bytes = writes.inflight_bytes;
    device.read_bytes_per_s = reads.gbps[kReads] * 1e9;
    device.write_bytes_per_s = writes.gbps[kWrites] * 1e9;
    device.flush_ms = FlushMs(std::span(target_.runs).subspan(first_run));
    FOREBAY_RETURN_IF_ERROR(FindBurst(device));
    device.weight = device.mixed_bytes_per_s / 1e9;
    FOREBAY_RETURN_IF_ERROR(CheckTuned(device));
    return device;
  }

 private:
  // Of all passes with writes: how long the disk needs to have everything durable.
  static double FlushMs(std::span<const CellResult> runs) {
    std::vector<double> flushes;
    for (const CellResult& run : runs) {
      if (run.flush_ms.has_value()) flushes.push_back(*run.flush_ms);
    }
    return SpreadOf(std::move(flushes)).median;
  }

  absl::Status FindBurst(DeviceProfile& device) {
    Job job = job_;
    job.loads = {kMixed};
    job.block_bytes = device.block_bytes;
    job.cap_bytes = std::max(device.inflight_read_bytes, device.inflight_write_bytes);
    // Enough in the queue that the longest turn is the engine's choice and no lack of work.
    const int64_t queued_bytes = 4 * options_.burst_bytes.back();
    job.depth = static_cast<int>(
        std::clamp<int64_t>(queued_bytes / job.block_bytes, 1, kMaxDepthPerThread));
    while (job.depth > 1 && !CheckJob(job).ok()) --job.depth;
    std::vector<BurstPoint> points;
    const std::vector<int64_t> bursts = BurstsOf(options_.burst_bytes, job.block_bytes);
    PassBudget budget(options_.budget_s * kBurstShare, bursts.size(), kLeastBurstPassS);
    for (const int64_t burst : bursts) {
      budget.Share(job);
      job.burst_bytes = burst;
      FOREBAY_ASSIGN_OR_RETURN(const std::vector<double> gbps, target_.Measure(job, device.engine));
      points.push_back({job.burst_bytes, gbps[0]});
    }
    const BurstPoint& knee = KneeOfBursts(points);
    device.burst_bytes = knee.burst_bytes;
    device.mixed_bytes_per_s = knee.gbps * 1e9;
    return absl::OkStatus();
  }

  TargetRuns target_;
  Job job_;
  const TuneOptions& options_;
};

}  // namespace

const SweepPoint& KneeOfLoad(std::span<const SweepPoint> points, EngineKind engine,
                             int64_t block_bytes, size_t load, double share) {
  const auto counts = [&](const SweepPoint& point) {
    return point.engine == engine && point.block_bytes == block_bytes;
  };
  double best = 0;
  for (const SweepPoint& point : points) {
    if (counts(point)) best = std::max(best, point.gbps[load]);
  }
  const SweepPoint* knee = nullptr;
  for (const SweepPoint& point : points) {
    if (!counts(point) || point.gbps[load] < share * best) continue;
    if (knee == nullptr || point.inflight_bytes < knee->inflight_bytes) knee = &point;
  }
  FOREBAY_CHECK(knee != nullptr);
  return *knee;
}

std::vector<int64_t> BurstsOf(std::span<const int64_t> burst_bytes, int64_t block_bytes) {
  std::vector<int64_t> bursts;
  for (const int64_t burst : burst_bytes) {
    const int64_t whole = std::max(burst, block_bytes);
    if (bursts.empty() || whole > bursts.back()) bursts.push_back(whole);
  }
  return bursts;
}

const BurstPoint& KneeOfBursts(std::span<const BurstPoint> points, double share) {
  FOREBAY_CHECK(!points.empty());
  const double best = std::ranges::max_element(points, {}, &BurstPoint::gbps)->gbps;
  return *std::ranges::find_if(points,
                               [&](const BurstPoint& point) { return point.gbps >= share * best; });
}

absl::Status CheckTuned(const DeviceProfile& device) {
  for (const auto& [rate, what] :
       {std::pair(device.read_bytes_per_s, "reads"), std::pair(device.write_bytes_per_s, "writes"),
        std::pair(device.mixed_bytes_per_s, "mixed loads")}) {
    if (rate > 0) continue;
    return UsageError(fmt::format(
        "no {} were completed in '{}' in the time of a pass: the disk is too slow for this budget. "
        "Take a longer --budget",
        what, device.directory));
  }
  return absl::OkStatus();
}

Json DeepSpeedAio(const DeviceProfile& device) {
  return {{"aio",
           {{"block_size", device.block_bytes},
            {"queue_depth", std::max<int64_t>(1, device.inflight_read_bytes / device.block_bytes)},
            {"intra_op_parallelism", 1},
            {"single_submit", false},
            {"overlap_events", true}}}};
}

absl::StatusOr<TuneReport> RunTune(const Job& asked, const TuneOptions& options,
                                   const BenchHooks& hooks) {
  Job job = WithFirstPoint(asked);
  job.loads = {{LoadOp::kRead, 100}, {LoadOp::kWrite, 0}};
  job.repeats = 1;
  FOREBAY_RETURN_IF_ERROR(CheckSearch(job));
  FOREBAY_RETURN_IF_ERROR(CheckBudget(options.budget_s, LeastTuneS(job, options)));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSession> session,
                           BenchSession::Open(job, hooks));
  TuneReport tuned;
  tuned.report = BeginReport(job, *session);
  tuned.report.budget_s = options.budget_s;
  for (int target = 0; target < static_cast<int>(job.targets.size()); ++target) {
    FOREBAY_ASSIGN_OR_RETURN(
        tuned.profile.devices.emplace_back(),
        Tuner({*session, target, hooks, tuned.report.runs}, job, options).Run());
  }
  return tuned;
}

}  // namespace forebay
