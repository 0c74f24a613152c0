#include "forebay/measure/tune.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr size_t kReads = 0;
constexpr size_t kWrites = 1;
// As a step of the bf16 layout reads and writes: 14 and 12 bytes per parameter.
constexpr LoadKind kMixed = {LoadOp::kMixed, 54};

class Tuner {
 public:
  Tuner(BenchSession& session, const Job& job, int target, const TuneOptions& options,
        const BenchHooks& hooks, std::vector<CellResult>& runs)
      : session_(session),
        job_(job),
        target_(target),
        options_(options),
        hooks_(hooks),
        runs_(runs) {
    // The one that the trainer's ladder takes.
    job_.engine = at().engine;
    job_.loads = {{LoadOp::kRead, 100}, {LoadOp::kWrite, 0}};
    job_.repeats = 1;
  }

  absl::StatusOr<DeviceProfile> Run() {
    DeviceProfile device;
    device.directory = at().directory;
    FOREBAY_ASSIGN_OR_RETURN(device.key, AskDeviceKey(device.directory));
    const size_t first_run = runs_.size();
    FOREBAY_ASSIGN_OR_RETURN(const SweepBest best,
                             SweepTarget(session_, job_, target_, options_.sweep, hooks_, runs_));
    device.engine = best.best.engine;
    device.block_bytes = best.best.block_bytes;
    const SweepPoint& reads = KneeOfLoad(best.points, device.engine, device.block_bytes, kReads);
    const SweepPoint& writes = KneeOfLoad(best.points, device.engine, device.block_bytes, kWrites);
    device.inflight_read_bytes = reads.inflight_bytes;
    device.inflight_write_bytes = writes.inflight_bytes;
    device.read_bytes_per_s = reads.gbps[kReads] * 1e9;
    device.write_bytes_per_s = writes.gbps[kWrites] * 1e9;
    device.flush_ms = FlushMs(std::span(runs_).subspan(first_run));
    FOREBAY_RETURN_IF_ERROR(FindBurst(device));
    device.weight = device.mixed_bytes_per_s / 1e9;
    return device;
  }

 private:
  const BenchTarget& at() const { return *session_.targets()[static_cast<size_t>(target_)]; }

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
    job.seconds = options_.burst_seconds;
    // Enough in the queue that the longest turn is the engine's choice and no lack of work.
    const int64_t queued_bytes = 4 * options_.burst_bytes.back();
    job.depth = static_cast<int>(
        std::clamp<int64_t>(queued_bytes / job.block_bytes, 1, kMaxDepthPerThread));
    while (job.depth > 1 && !CheckJob(job).ok()) --job.depth;
    std::vector<BurstPoint> points;
    for (const int64_t burst : options_.burst_bytes) {
      job.burst_bytes = std::max(burst, job.block_bytes);
      const std::vector<BenchCell> cells = {{kMixed, {target_}}};
      FOREBAY_ASSIGN_OR_RETURN(std::vector<CellResult> results,
                               RunCells(session_, job, cells, device.engine, hooks_));
      points.push_back({job.burst_bytes, results[0].gbps.median});
      runs_.push_back(std::move(results[0]));
    }
    const BurstPoint& knee = KneeOfBursts(points);
    device.burst_bytes = knee.burst_bytes;
    device.mixed_bytes_per_s = knee.gbps * 1e9;
    return absl::OkStatus();
  }

  BenchSession& session_;
  Job job_;
  const int target_;
  const TuneOptions& options_;
  const BenchHooks& hooks_;
  std::vector<CellResult>& runs_;
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

const BurstPoint& KneeOfBursts(std::span<const BurstPoint> points, double share) {
  FOREBAY_CHECK(!points.empty());
  const double best = std::ranges::max_element(points, {}, &BurstPoint::gbps)->gbps;
  return *std::ranges::find_if(points,
                               [&](const BurstPoint& point) { return point.gbps >= share * best; });
}

Json DeepSpeedAio(const DeviceProfile& device) {
  return {{"aio",
           {{"block_size", device.block_bytes},
            {"queue_depth", std::max<int64_t>(1, device.inflight_read_bytes / device.block_bytes)},
            {"intra_op_parallelism", 1},
            {"single_submit", false},
            {"overlap_events", true}}}};
}

absl::StatusOr<TuneReport> RunTune(const Job& job, const TuneOptions& options,
                                   const BenchHooks& hooks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSession> session,
                           BenchSession::Open(job, hooks));
  TuneReport tuned;
  tuned.report = BeginReport(job, *session);
  for (int target = 0; target < static_cast<int>(job.targets.size()); ++target) {
    FOREBAY_ASSIGN_OR_RETURN(tuned.profile.devices.emplace_back(),
                             Tuner(*session, job, target, options, hooks, tuned.report.runs).Run());
  }
  return tuned;
}

}  // namespace forebay
