#include "forebay/measure/runs/tune.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/measure/runs/final_turns.h"

namespace forebay {
namespace {

constexpr size_t kReads = 0;
constexpr size_t kWrites = 1;
// As a step of the bf16 layout reads and writes: 14 and 12 bytes per parameter.
constexpr LoadKind kMixed = {LoadOp::kMixed, 54};
constexpr double kLeastBurstPassS = 0.1;
// Shares of the budget: the search for block and depths, the final turns of its best (up to where
// they end), and the search for the turns of mixed loads. The rest is for the final turns of that.
constexpr double kTuneSearchShare = 0.5;
constexpr double kDepthsEnd = 0.72;
constexpr double kBurstShare = 0.16;

double LeastBurstsS(const TuneOptions& options) {
  return kLeastBurstPassS * static_cast<double>(options.burst_bytes.size());
}

// The least budget for one folder: of the searches alone.
double LeastTuneS(const Job& job, const TuneOptions& options) {
  return LeastSweepS(job, options.sweep) + LeastBurstsS(options);
}

// Of a figure that was measured once.
Spread SpreadOfOne(double gbps) {
  return {gbps, gbps, gbps, 1};
}

Spread SpreadAt(const SweepPoint& point, size_t load) {
  return point.num_turns > 0 ? point.spread[load] : SpreadOfOne(point.gbps[load]);
}

class Tuner {
 public:
  Tuner(TargetRuns target, const Job& job, const TuneOptions& options)
      : target_(target), job_(job), options_(options) {
    // The one that the trainer's ladder takes.
    job_.engine = target_.folder().engine;
    job_.targets.resize(1);  // one folder at a time
  }

  // The rates and a note go to `tuned` too.
  absl::Status Run(TuneReport& tuned) {
    DeviceProfile device;
    device.directory = target_.folder().directory;
    FOREBAY_ASSIGN_OR_RETURN(device.key, AskDeviceKey(device.directory));
    const size_t first_run = target_.runs.size();
    const double search_s =
        std::max(kTuneSearchShare * options_.budget_s, LeastSweepS(job_, options_.sweep));
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<SweepPoint> points,
                             SearchPoints(target_, job_, options_.sweep, search_s));
    device.engine = BestPoint(points).engine;
    device.block_bytes = BestPoint(points).block_bytes;
    FOREBAY_RETURN_IF_ERROR(FindDepths(points, device));
    device.flush_ms = FlushMs(std::span(target_.runs).subspan(first_run));
    FOREBAY_RETURN_IF_ERROR(FindBurst(device));
    device.weight = device.mixed_bytes_per_s / 1e9;
    FOREBAY_RETURN_IF_ERROR(CheckTuned(device));
    const std::string note = FewTurnsNote(device.directory, rates_.num_turns);
    if (!note.empty()) tuned.report.warnings.push_back(note);
    tuned.profile.devices.push_back(std::move(device));
    tuned.rates.push_back(rates_);
    return absl::OkStatus();
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

  // The bytes in flight of reads and of writes, by what their best points do in turns.
  absl::Status FindDepths(const std::vector<SweepPoint>& points, DeviceProfile& device) {
    const auto finalists = [&](size_t load) {
      return FinalistsOfLoad(points, device.engine, device.block_bytes, load);
    };
    std::vector<SweepPoint> reads = finalists(kReads);
    std::vector<SweepPoint> writes = finalists(kWrites);
    std::vector<Contender> contenders;
    for (SweepPoint& point : reads) contenders.push_back({&point, kReads});
    for (SweepPoint& point : writes) contenders.push_back({&point, kWrites});
    FOREBAY_ASSIGN_OR_RETURN(
        rates_.num_turns,
        MeasureAgain(target_, job_, contenders, kDepthsEnd * options_.budget_s - watch_.Seconds()));
    const SweepPoint& read = KneeOfLoad(reads, device.engine, device.block_bytes, kReads);
    const SweepPoint& write = KneeOfLoad(writes, device.engine, device.block_bytes, kWrites);
    rates_.reads = SpreadAt(read, kReads);
    rates_.writes = SpreadAt(write, kWrites);
    device.inflight_read_bytes = read.inflight_bytes;
    device.inflight_write_bytes = write.inflight_bytes;
    device.read_bytes_per_s = rates_.reads.median * 1e9;
    device.write_bytes_per_s = rates_.writes.median * 1e9;
    return absl::OkStatus();
  }

  // Mixed loads, with enough in the queue that the longest turn is the engine's choice and no lack
  // of work.
  Job MixedJob(const DeviceProfile& device) const {
    Job job = job_;
    job.loads = {kMixed};
    job.block_bytes = device.block_bytes;
    job.cap_bytes = std::max(device.inflight_read_bytes, device.inflight_write_bytes);
    const int64_t queued_bytes = 4 * options_.burst_bytes.back();
    job.depth = static_cast<int>(
        std::clamp<int64_t>(queued_bytes / job.block_bytes, 1, kMaxDepthPerThread));
    while (job.depth > 1 && !CheckJob(job).ok()) --job.depth;
    return job;
  }

  absl::Status FindBurst(DeviceProfile& device) {
    Job job = MixedJob(device);
    std::vector<BurstPoint> points;
    const std::vector<int64_t> bursts = BurstsOf(options_.burst_bytes, job.block_bytes);
    const double search_s = std::max(kBurstShare * options_.budget_s, LeastBurstsS(options_));
    PassBudget budget(search_s, bursts.size(), kLeastBurstPassS);
    for (const int64_t burst : bursts) {
      budget.Share(job);
      job.burst_bytes = burst;
      FOREBAY_ASSIGN_OR_RETURN(const std::vector<double> gbps, target_.Measure(job, device.engine));
      points.push_back({job.burst_bytes, gbps[0], SpreadOfOne(gbps[0])});
    }
    points = FinalistsOfBursts(points);
    FOREBAY_RETURN_IF_ERROR(MeasureBurstsAgain(device, points));
    const BurstPoint& knee = KneeOfBursts(points);
    device.burst_bytes = knee.burst_bytes;
    device.mixed_bytes_per_s = knee.gbps * 1e9;
    rates_.mixed = knee.spread;
    return absl::OkStatus();
  }

  absl::Status MeasureBurstsAgain(const DeviceProfile& device, std::vector<BurstPoint>& points) {
    std::vector<CellSetting> settings;
    for (const BurstPoint& point : points) {
      settings.push_back({MixedJob(device), {kMixed, {target_.target}}, device.engine});
      settings.back().job.burst_bytes = point.burst_bytes;
    }
    FOREBAY_ASSIGN_OR_RETURN(
        const FinalFigures figures,
        RunFinalTurns(target_, std::move(settings), options_.budget_s - watch_.Seconds()));
    rates_.num_turns = std::min(rates_.num_turns, figures.num_turns);
    for (size_t i = 0; i < figures.gbps.size(); ++i) {
      points[i].spread = figures.gbps[i];
      points[i].gbps = figures.gbps[i].median;
    }
    return absl::OkStatus();
  }

  TargetRuns target_;
  Job job_;
  const TuneOptions& options_;
  const Stopwatch watch_;
  TunedRates rates_;
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

std::vector<SweepPoint> FinalistsOfLoad(const std::vector<SweepPoint>& points, EngineKind engine,
                                        int64_t block_bytes, size_t load) {
  std::vector<SweepPoint> candidates = points;
  std::erase_if(candidates, [&](const SweepPoint& point) {
    return point.engine != engine || point.block_bytes != block_bytes;
  });
  const auto knee_of = [&](const std::vector<SweepPoint>& of, double share) {
    return KneeOfLoad(of, engine, block_bytes, load, share);
  };
  std::vector<SweepPoint> chosen = {knee_of(candidates, kNearlyBest), knee_of(candidates, 1)};
  const std::vector<SweepPoint> others = Without(candidates, chosen[0]);
  if (!others.empty()) chosen.push_back(knee_of(others, kNearlyBest));
  std::erase_if(candidates, [&](const SweepPoint& point) {
    return std::ranges::none_of(chosen,
                                [&](const SweepPoint& one) { return SameSetting(one, point); });
  });
  return candidates;
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

std::vector<BurstPoint> FinalistsOfBursts(std::span<const BurstPoint> points) {
  const int64_t knee = KneeOfBursts(points).burst_bytes;
  const int64_t best = KneeOfBursts(points, 1).burst_bytes;
  std::vector<BurstPoint> others(points.begin(), points.end());
  std::erase_if(others, [&](const BurstPoint& point) { return point.burst_bytes == knee; });
  const int64_t runner_up = others.empty() ? knee : KneeOfBursts(others).burst_bytes;
  std::vector<BurstPoint> finalists(points.begin(), points.end());
  std::erase_if(finalists, [&](const BurstPoint& point) {
    return point.burst_bytes != knee && point.burst_bytes != best && point.burst_bytes != runner_up;
  });
  return finalists;
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
    Tuner tuner({*session, target, hooks, tuned.report.runs}, job, options);
    FOREBAY_RETURN_IF_ERROR(tuner.Run(tuned));
  }
  NoteHeat(tuned.report);
  return tuned;
}

}  // namespace forebay
