#include "forebay/measure/sweep.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr double kShortestPassS = 0.2;
constexpr double kLongestPassS = 3;
constexpr int64_t kFirstBlockBytes = int64_t{1} << 20;
constexpr int64_t kFirstInflightBytes = int64_t{32} << 20;

// The search over one folder.
class Search {
 public:
  Search(BenchSession& session, const Job& job, int target, const SweepOptions& options,
         const BenchHooks& hooks, std::vector<CellResult>& runs)
      : session_(session),
        job_(job),
        target_(target),
        options_(options),
        hooks_(hooks),
        runs_(runs) {}

  absl::Status Run() {
    engines_ = Engines();
    job_.seconds = PassSeconds();
    SweepPoint at;
    at.block_bytes = kFirstBlockBytes;
    at.inflight_bytes = kFirstInflightBytes;
    for (const EngineKind engine : engines_) {
      at.engine = engine;
      FOREBAY_RETURN_IF_ERROR(Measure(at));
    }
    at = BestPoint(points_);
    for (const int64_t block : options_.block_bytes) {
      at.block_bytes = block;
      FOREBAY_RETURN_IF_ERROR(Measure(at));
    }
    at = BestPoint(points_);
    for (const int64_t inflight : options_.inflight_bytes) {
      at.inflight_bytes = inflight;
      FOREBAY_RETURN_IF_ERROR(Measure(at));
    }
    return absl::OkStatus();
  }

  SweepBest best() const {
    return {session_.targets()[static_cast<size_t>(target_)]->directory, BestPoint(points_),
            KneePoint(points_), points_};
  }

 private:
  // Those that work in the folder, the one that the ladder chose first.
  std::vector<EngineKind> Engines() const {
    const BenchTarget& target = *session_.targets()[static_cast<size_t>(target_)];
    std::vector<EngineKind> engines = {target.engine};
    if (job_.engine != EngineKind::kAuto) return engines;
    for (const EngineKind kind :
         {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
      if (kind <= target.engine) continue;
      EngineOptions options = EngineOptionsOf(job_, 1);
      options.engine = kind;
      options.strict = true;
      if (OpenEngine(options, target.directory).ok()) engines.push_back(kind);
    }
    return engines;
  }

  double PassSeconds() const {
    const size_t num_points =
        engines_.size() + options_.block_bytes.size() + options_.inflight_bytes.size();
    const auto num_passes =
        static_cast<double>(num_points * job_.loads.size() * session_.targets().size() *
                            static_cast<size_t>(job_.repeats));
    return std::clamp(options_.budget_s / num_passes - job_.warmup_s, kShortestPassS,
                      kLongestPassS);
  }

  // Each setting once; one that the file or the ring is too small for is left out.
  absl::Status Measure(const SweepPoint& at) {
    const bool measured = std::ranges::any_of(points_, [&](const SweepPoint& point) {
      return point.block_bytes == at.block_bytes && point.inflight_bytes == at.inflight_bytes &&
             point.engine == at.engine;
    });
    Job job = job_;
    job.block_bytes = at.block_bytes;
    job.depth = static_cast<int>(at.inflight_bytes / at.block_bytes);
    if (measured || job.depth < job.threads || !CheckJob(job).ok()) return absl::OkStatus();
    std::vector<BenchCell> cells;
    for (const LoadKind& load : job.loads) cells.push_back({load, {target_}});
    FOREBAY_ASSIGN_OR_RETURN(std::vector<CellResult> results,
                             RunCells(session_, job, cells, at.engine, hooks_));
    SweepPoint point = at;
    point.gbps.clear();  // of the point that the search came from
    for (CellResult& result : results) {
      point.gbps.push_back(result.gbps.median);
      runs_.push_back(std::move(result));
    }
    points_.push_back(std::move(point));
    return absl::OkStatus();
  }

  BenchSession& session_;
  Job job_;
  const int target_;
  const SweepOptions& options_;
  const BenchHooks& hooks_;
  std::vector<CellResult>& runs_;
  std::vector<EngineKind> engines_;
  std::vector<SweepPoint> points_;
};

}  // namespace

double SweepPoint::score() const {
  double product = gbps.empty() ? 0 : 1;
  for (const double value : gbps) product *= value;
  return gbps.empty() ? 0 : std::pow(product, 1 / static_cast<double>(gbps.size()));
}

const SweepPoint& BestPoint(const std::vector<SweepPoint>& points) {
  FOREBAY_CHECK(!points.empty());
  return *std::ranges::max_element(points, {}, &SweepPoint::score);
}

const SweepPoint& KneePoint(const std::vector<SweepPoint>& points, double share) {
  const SweepPoint* knee = &BestPoint(points);
  const double enough = knee->score() * share;
  for (const SweepPoint& point : points) {
    if (point.engine == knee->engine && point.block_bytes == knee->block_bytes &&
        point.inflight_bytes < knee->inflight_bytes && point.score() >= enough) {
      knee = &point;
    }
  }
  return *knee;
}

absl::StatusOr<SweepBest> SweepTarget(BenchSession& session, const Job& job, int target,
                                      const SweepOptions& options, const BenchHooks& hooks,
                                      std::vector<CellResult>& runs) {
  Search search(session, job, target, options, hooks, runs);
  FOREBAY_RETURN_IF_ERROR(search.Run());
  return search.best();
}

absl::StatusOr<SweepReport> RunSweep(const Job& job, const SweepOptions& options,
                                     const BenchHooks& hooks) {
  Job first = job;
  first.block_bytes = kFirstBlockBytes;
  first.depth = static_cast<int>(kFirstInflightBytes / kFirstBlockBytes);
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSession> session,
                           BenchSession::Open(first, hooks));
  SweepReport sweep;
  sweep.report = BeginReport(job, *session);
  for (int target = 0; target < static_cast<int>(job.targets.size()); ++target) {
    FOREBAY_ASSIGN_OR_RETURN(
        sweep.best.emplace_back(),
        SweepTarget(*session, first, target, options, hooks, sweep.report.runs));
  }
  return sweep;
}

}  // namespace forebay
