#include "forebay/measure/sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

constexpr double kLeastPassS = 0.05;
constexpr std::array<EngineKind, 3> kSearchedEngines = {EngineKind::kIoUring, EngineKind::kLibaio,
                                                        EngineKind::kThreads};
constexpr int64_t kFirstBlockBytes = int64_t{1} << 20;
constexpr int64_t kFirstInflightBytes = int64_t{32} << 20;

size_t MostPasses(const Job& job, const SweepOptions& options, size_t num_engines) {
  const size_t num_points =
      num_engines + options.block_bytes.size() + options.inflight_bytes.size();
  return num_points * job.loads.size() * static_cast<size_t>(job.repeats);
}

// The search over one folder.
class Search {
 public:
  Search(TargetRuns target, const Job& job, const SweepOptions& options, double budget_s)
      : target_(target),
        job_(job),
        options_(options),
        engines_(Engines()),
        budget_(budget_s, MostPasses(job, options, engines_.size()), kLeastPassS) {
    job_.targets.resize(1);  // one folder at a time, so that CheckJob judges no striped load
  }

  absl::Status Run() {
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
    return {target_.folder().directory, BestPoint(points_), KneePoint(points_), points_};
  }

 private:
  // Those that work in the folder, the one that the ladder chose first.
  std::vector<EngineKind> Engines() const {
    const BenchTarget& folder = target_.folder();
    std::vector<EngineKind> engines = {folder.engine};
    if (job_.engine != EngineKind::kAuto) return engines;
    for (const EngineKind kind : kSearchedEngines) {
      if (kind <= folder.engine) continue;
      EngineOptions options = EngineOptionsOf(job_, 1);
      options.engine = kind;
      options.strict = true;
      if (OpenEngine(options, {folder.directory}).ok()) engines.push_back(kind);
    }
    return engines;
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
    if (measured || job.depth < job.threads || !CheckJob(job).ok()) {
      budget_.LeaveOut(job);
      return absl::OkStatus();
    }
    budget_.Share(job);
    SweepPoint point = at;
    FOREBAY_ASSIGN_OR_RETURN(point.gbps, target_.Measure(job, at.engine));
    points_.push_back(std::move(point));
    return absl::OkStatus();
  }

  TargetRuns target_;
  Job job_;
  const SweepOptions& options_;
  const std::vector<EngineKind> engines_;
  PassBudget budget_;
  std::vector<SweepPoint> points_;
};

}  // namespace

double SweepPoint::score() const {
  double product = gbps.empty() ? 0 : 1;
  for (const double value : gbps) product *= value;
  return gbps.empty() ? 0 : std::pow(product, 1 / static_cast<double>(gbps.size()));
}

const SweepPoint& BestPoint(const std::vector<SweepPoint>& points, double share) {
  FOREBAY_CHECK(!points.empty());
  const double enough = std::ranges::max_element(points, {}, &SweepPoint::score)->score() * share;
  return *std::ranges::find_if(points,
                               [&](const SweepPoint& point) { return point.score() >= enough; });
}

const SweepPoint& KneePoint(const std::vector<SweepPoint>& points, double share) {
  const SweepPoint* knee = &BestPoint(points, share);
  const double enough = knee->score() * share;
  for (const SweepPoint& point : points) {
    if (point.engine == knee->engine && point.block_bytes == knee->block_bytes &&
        point.inflight_bytes < knee->inflight_bytes && point.score() >= enough) {
      knee = &point;
    }
  }
  return *knee;
}

Job WithFirstPoint(Job job) {
  job.block_bytes = kFirstBlockBytes;
  job.depth = static_cast<int>(kFirstInflightBytes / kFirstBlockBytes);
  return job;
}

absl::Status CheckSearch(const Job& job) {
  const Job first = WithFirstPoint(job);
  // In words of flags that a search has.
  if (job.size_bytes < LeastFileBytes(first)) {
    return UsageError(
        fmt::format("--size is {}; this takes a file of {} or more, such as --size=1G",
                    FormatBinaryBytes(job.size_bytes), FormatBinaryBytes(LeastFileBytes(first))));
  }
  if (job.threads > first.depth) {
    return UsageError(fmt::format("--threads is {}; allowed: 1 to {}", job.threads, first.depth));
  }
  const int64_t most_targets = int64_t{kMaxDepthPerThread} * std::max(1, job.threads) / first.depth;
  if (std::ssize(job.targets) > most_targets) {
    return UsageError(fmt::format("{} folders are too many for one search; allowed: {}",
                                  job.targets.size(), most_targets));
  }
  return CheckJob(first);
}

double LeastSweepS(const Job& job, const SweepOptions& options) {
  const size_t num_engines = job.engine == EngineKind::kAuto ? std::size(kSearchedEngines) : 1;
  return kLeastPassS * static_cast<double>(MostPasses(job, options, num_engines));
}

absl::StatusOr<SweepBest> SweepTarget(TargetRuns target, const Job& job,
                                      const SweepOptions& options, double folder_budget_s) {
  Search search(target, job, options, folder_budget_s);
  FOREBAY_RETURN_IF_ERROR(search.Run());
  return search.best();
}

absl::StatusOr<SweepReport> RunSweep(const Job& job, const SweepOptions& options,
                                     const BenchHooks& hooks) {
  FOREBAY_RETURN_IF_ERROR(CheckSearch(job));
  const Job first = WithFirstPoint(job);
  const auto num_folders = static_cast<double>(job.targets.size());
  const double folder_budget_s = options.budget_s / num_folders;
  FOREBAY_RETURN_IF_ERROR(CheckBudget(options.budget_s, LeastSweepS(job, options) * num_folders));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSession> session,
                           BenchSession::Open(first, hooks));
  SweepReport sweep;
  sweep.report = BeginReport(first, *session);
  sweep.report.budget_s = folder_budget_s;
  for (int target = 0; target < static_cast<int>(job.targets.size()); ++target) {
    FOREBAY_ASSIGN_OR_RETURN(
        sweep.best.emplace_back(),
        SweepTarget({*session, target, hooks, sweep.report.runs}, first, options, folder_budget_s));
  }
  return sweep;
}

}  // namespace forebay
