#include "forebay/measure/runs/sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/measure/runs/final_turns.h"

namespace forebay {
namespace {

// Of the budget, where the search needs no more: the rest is for the best points' final turns.
constexpr double kSweepSearchShare = 0.6;
constexpr std::array<EngineKind, 3> kSearchedEngines = {EngineKind::kIoUring, EngineKind::kLibaio,
                                                        EngineKind::kThreads};
constexpr int64_t kFirstBlockBytes = int64_t{1} << 20;
constexpr int64_t kFirstInflightBytes = int64_t{32} << 20;

size_t MostPasses(const Job& job, const SweepOptions& options, size_t num_engines) {
  const size_t num_points =
      num_engines + options.block_bytes.size() + options.inflight_bytes.size();
  return num_points * job.loads.size() * static_cast<size_t>(job.repeats);
}

Job AtPoint(Job job, const SweepPoint& point) {
  job.targets.resize(1);  // one folder at a time, so that CheckJob judges no striped load
  job.block_bytes = point.block_bytes;
  job.depth = static_cast<int>(point.inflight_bytes / point.block_bytes);
  return job;
}

// The search over one folder.
class Search {
 public:
  Search(TargetRuns target, const Job& job, const SweepOptions& options, double budget_s)
      : target_(target),
        job_(job),
        options_(options),
        engines_(Engines()),
        longest_request_bytes_(LongestRequestBytes(target.folder().storage)),
        budget_(budget_s, MostPasses(job, options, engines_.size()), kLeastPassS) {}

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

  std::vector<SweepPoint> points() && { return std::move(points_); }

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
    const bool measured = std::ranges::any_of(
        points_, [&](const SweepPoint& point) { return SameSetting(point, at); });
    Job job = AtPoint(job_, at);
    if (measured || job.depth < job.threads || !CheckJob(job).ok()) {
      budget_.LeaveOut(job);
      return absl::OkStatus();
    }
    budget_.Share(job);
    SweepPoint point = at;
    // The page cache makes requests of its own.
    point.split = longest_request_bytes_ > 0 && at.block_bytes > longest_request_bytes_ &&
                  at.engine != EngineKind::kBuffered;
    FOREBAY_ASSIGN_OR_RETURN(point.gbps, target_.Measure(job, at.engine));
    points_.push_back(std::move(point));
    return absl::OkStatus();
  }

  TargetRuns target_;
  const Job& job_;
  const SweepOptions& options_;
  const std::vector<EngineKind> engines_;
  const int64_t longest_request_bytes_;
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
  const auto is_enough = [&](const SweepPoint& point) { return point.score() >= enough; };
  const auto unsplit = std::ranges::find_if(
      points, [&](const SweepPoint& point) { return is_enough(point) && !point.split; });
  return unsplit != points.end() ? *unsplit : *std::ranges::find_if(points, is_enough);
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

bool SameSetting(const SweepPoint& a, const SweepPoint& b) {
  return a.block_bytes == b.block_bytes && a.inflight_bytes == b.inflight_bytes &&
         a.engine == b.engine;
}

std::vector<SweepPoint> Without(std::vector<SweepPoint> points, const SweepPoint& left_out) {
  std::erase_if(points, [&](const SweepPoint& point) { return SameSetting(point, left_out); });
  return points;
}

std::vector<SweepPoint> FinalistsOf(const std::vector<SweepPoint>& points) {
  std::vector<SweepPoint> chosen = {BestPoint(points), KneePoint(points)};
  for (const SweepPoint& winner : {chosen[0], chosen[1]}) {
    const std::vector<SweepPoint> others = Without(points, winner);
    if (others.empty()) continue;
    chosen.push_back(BestPoint(others));
    chosen.push_back(KneePoint(others));
  }
  std::vector<SweepPoint> finalists;
  for (const SweepPoint& point : points) {
    const bool is_chosen =
        std::ranges::any_of(chosen, [&](const SweepPoint& one) { return SameSetting(one, point); });
    if (is_chosen) finalists.push_back(point);
  }
  return finalists;
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

absl::StatusOr<std::vector<SweepPoint>> SearchPoints(TargetRuns target, const Job& job,
                                                     const SweepOptions& options, double budget_s) {
  Search search(target, job, options, budget_s);
  FOREBAY_RETURN_IF_ERROR(search.Run());
  return std::move(search).points();
}

absl::StatusOr<int> MeasureAgain(TargetRuns target, const Job& job,
                                 const std::vector<Contender>& contenders, double budget_s) {
  std::vector<CellSetting> settings;
  for (const auto& [point, load] : contenders) {
    settings.push_back({AtPoint(job, *point), {job.loads[load], {target.target}}, point->engine});
  }
  FOREBAY_ASSIGN_OR_RETURN(const FinalFigures figures,
                           RunFinalTurns(target, std::move(settings), budget_s));
  if (figures.num_turns == 0) return 0;
  for (size_t i = 0; i < contenders.size(); ++i) {
    SweepPoint& point = *contenders[i].point;
    point.spread.resize(job.loads.size());
    point.spread[contenders[i].load] = figures.gbps[i];
    point.gbps[contenders[i].load] = figures.gbps[i].median;
    point.num_turns = figures.num_turns;
  }
  return figures.num_turns;
}

namespace {

// The search and the final turns over one folder.
absl::StatusOr<SweepBest> SweepTarget(TargetRuns target, const Job& job,
                                      const SweepOptions& options, double budget_s) {
  const Stopwatch watch;
  const double search_s = std::max(kSweepSearchShare * budget_s, LeastSweepS(job, options));
  SweepBest best;
  best.device = target.folder().directory;
  FOREBAY_ASSIGN_OR_RETURN(best.points, SearchPoints(target, job, options, search_s));
  std::vector<SweepPoint> finalists = FinalistsOf(best.points);
  std::vector<Contender> contenders;
  for (SweepPoint& point : finalists) {
    for (size_t load = 0; load < job.loads.size(); ++load) contenders.push_back({&point, load});
  }
  FOREBAY_ASSIGN_OR_RETURN(const int num_turns,
                           MeasureAgain(target, job, contenders, budget_s - watch.Seconds()));
  best.note = FewTurnsNote(best.device, num_turns);
  best.best = BestPoint(finalists);
  best.knee = KneePoint(finalists);
  for (SweepPoint& point : best.points) {
    const auto again = std::ranges::find_if(
        finalists, [&](const SweepPoint& one) { return SameSetting(one, point); });
    if (again != finalists.end()) point = *again;
  }
  return best;
}

}  // namespace

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
    const std::string& note = sweep.best.back().note;
    if (!note.empty()) sweep.report.warnings.push_back(note);
  }
  NoteHeat(sweep.report);
  return sweep;
}

}  // namespace forebay
