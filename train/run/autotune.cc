#include "forebay/train/run/autotune.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/process/cores.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/train/run/trainer.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {
namespace {

// Nothing is learned in a trial, and no loss can run away.
constexpr double kTrialLr = 1e-9;

// A folder of one's own in `parent`, or the nearest folder above it, and gone again at the end.
class ScratchFolder {
 public:
  static absl::StatusOr<ScratchFolder> Create(const std::string& parent) {
    std::string path = JoinPath(NearestFolder(parent), ".forebay-autotune-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) {
      return StorageError(fmt::format("making a folder for trials in '{}' failed", parent), errno);
    }
    return ScratchFolder(std::move(path));
  }
  ~ScratchFolder() {
    if (!path_.empty()) static_cast<void>(RemoveTree(path_).ok());
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Takes the times of steps.
class TrialObserver final : public TrainObserver {
 public:
  TrialObserver(const AutotuneOptions& options, std::function<void(double)> on_progress)
      : options_(options), on_progress_(std::move(on_progress)) {}

  void OnPlan(const std::string&, const Json&) override {}
  void OnPhase(const std::string&, double) override { on_progress_(0); }
  void OnProgress(int64_t step, int64_t, double fraction) override {
    const auto done = static_cast<double>(step - 1) + fraction;
    on_progress_(done / static_cast<double>(options_.last_step));
  }
  void OnStep(const Json& metrics) override {
    written_bytes_ += metrics.value("write_bytes", int64_t{0});
    if (metrics.value("step", int64_t{0}) >= options_.first_step) {
      seconds_.push_back(metrics.value("step_s", 0.0));
    }
  }
  void OnNote(const std::string&) override {}
  void OnWarning(const std::string&) override {}
  void OnDone(const Json& summary) override {
    written_bytes_ += summary.value("store_bytes", int64_t{0});  // as it was made
  }

  // The median time of the steps that count.
  double MedianSeconds() {
    const auto middle = seconds_.begin() + std::ssize(seconds_) / 2;
    std::ranges::nth_element(seconds_, middle);
    return *middle;
  }
  int64_t written_bytes() const { return written_bytes_; }

 private:
  const AutotuneOptions& options_;
  const std::function<void(double)> on_progress_;
  std::vector<double> seconds_;
  int64_t written_bytes_ = 0;
};

TunedSettings SettingsOf(const TrainOptions& options) {
  const int threads = options.threads > 0 ? options.threads : DefaultThreads();
  return {.batch = options.batch,
          .accum = options.accum,
          .threads = threads,
          .update_threads = options.update_threads > 0 ? options.update_threads : threads,
          .tile_elems = options.tile_elems};
}

// A run of the length of a trial, that leaves nothing outside of its folders.
TrainOptions OfATrial(TrainOptions options, const TunedSettings& settings,
                      const std::vector<ScratchFolder>& folders, int64_t num_steps) {
  options.batch = settings.batch;
  options.accum = settings.accum;
  options.threads = settings.threads;
  options.update_threads = settings.update_threads;
  options.tile_elems = settings.tile_elems;
  options.out = JoinPath(folders.front().path(), "run");
  for (size_t i = 0; i < options.nvme.size(); ++i) options.nvme[i] = folders[i + 1].path();
  options.steps = num_steps;
  options.stop_after = 0;
  options.warmup = 0;
  options.schedule = LrSchedule::kConstant;
  options.schedule_args = Json::object();
  options.lr = kTrialLr;
  for (ParamGroupOption& group : options.param_groups) {
    if (group.lr.has_value()) group.lr = kTrialLr;
  }
  // From the first step on that may.
  if (options.delay_update_from > 0) options.delay_update_from = 2;
  options.eval_data.clear();
  options.save_every = 0;
  options.export_format = ExportFormat::kNone;
  options.max_tbw = 0;
  options.trace.clear();
  return options;
}

absl::StatusOr<std::vector<ScratchFolder>> MakeFolders(const TrainOptions& options) {
  std::vector<ScratchFolder> folders;
  std::vector<std::string> parents = options.nvme;
  parents.insert(parents.begin(), options.out);
  for (const std::string& parent : parents) {
    FOREBAY_ASSIGN_OR_RETURN(ScratchFolder folder, ScratchFolder::Create(parent));
    folders.push_back(std::move(folder));
  }
  return folders;
}

Json SettingsJson(const TunedSettings& settings) {
  return {{"batch", settings.batch},
          {"accum", settings.accum},
          {"threads", settings.threads},
          {"update_threads", settings.update_threads},
          {"tile_elems", settings.tile_elems}};
}

// How much faster the best trial is than the first, in percent.
double GainPercent(const AutotuneReport& report) {
  const TuneOutcome& outcome = report.outcome;
  return 100 * (*outcome.trials.front().step_s / *outcome.trials[outcome.best].step_s - 1);
}

}  // namespace

absl::StatusOr<AutotuneReport> Autotune(const ResolvedOptions& resolved,
                                        const AutotuneOptions& options,
                                        const std::function<bool()>& stop,
                                        const AutotuneProgress& on_progress) {
  const TrainOptions& given = resolved.options;
  if (given.resume || given.dry_run) {
    return UsageError(fmt::format(
        "--autotune is for a run that is still to be started, and --{0} is not. Leave --{0} out",
        given.resume ? "resume" : "dry_run"));
  }
  TuneLimits limits = options.limits;
  const TunedSettings start = SettingsOf(given);
  limits.max_threads = std::max({DefaultThreads(), start.threads, start.update_threads});
  limits.tile_granularity = kLayerAlignElems;
  AutotuneReport report;
  report.tokens_per_step = given.batch * given.accum * given.seq;
  int num_trials = 0;
  const auto try_settings = [&](const TunedSettings& settings) -> absl::StatusOr<double> {
    const int trial = ++num_trials;
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<ScratchFolder> folders, MakeFolders(given));
    TrialObserver observer(options, [&](double fraction) { on_progress(trial, fraction); });
    const ResolvedOptions of_trial =
        ResolvedFrom(OfATrial(given, settings, folders, options.last_step), "autotune");
    const absl::Status trained = Train(of_trial, stop, observer);
    report.written_bytes += observer.written_bytes();
    if (ExitCodeOf(trained) == ExitCode::kInterrupted) {
      return InterruptedError("stopped on request: nothing is left of the trials");
    }
    FOREBAY_RETURN_IF_ERROR(trained);
    return observer.MedianSeconds();
  };
  FOREBAY_ASSIGN_OR_RETURN(report.outcome, SearchSettings(start, limits, try_settings));
  return report;
}

std::string BestFlags(const AutotuneReport& report) {
  const Json start = SettingsJson(report.outcome.trials.front().settings);
  const Json best = SettingsJson(report.outcome.trials[report.outcome.best].settings);
  std::string flags;
  for (const auto& [name, value] : best.items()) {
    if (value == start[name]) continue;
    flags +=
        fmt::format("{}{}={}", flags.empty() ? "" : " ", GivenAs(*FindOption(name)), value.dump());
  }
  return flags;
}

Json ToJson(const AutotuneReport& report) {
  Json json = {{"trials", Json::array()}};
  const TuneOutcome& outcome = report.outcome;
  for (const TuneTrial& trial : outcome.trials) {
    Json& row = json["trials"].emplace_back(SettingsJson(trial.settings));
    row["step_s"] = trial.step_s ? Json(*trial.step_s) : Json();
    row["tokens_per_s"] =
        trial.step_s ? Json(static_cast<double>(report.tokens_per_step) / *trial.step_s) : Json();
    if (!trial.step_s) row["why_not"] = trial.why_not;
  }
  json["best"] = outcome.best;
  json["flags"] = BestFlags(report);
  json["gain_percent"] = GainPercent(report);
  json["written_bytes"] = report.written_bytes;
  return json;
}

std::string FormatAutotune(const AutotuneReport& report) {
  const TuneOutcome& outcome = report.outcome;
  std::string table =
      fmt::format("{:>6}{:>8}{:>8}{:>9}{:>16}{:>12}{:>10}{:>10}\n", "trial", "batch", "accum",
                  "threads", "update_threads", "tile_elems", "step", "tokens/s");
  for (size_t i = 0; i < outcome.trials.size(); ++i) {
    const auto& [settings, step_s, why_not] = outcome.trials[i];
    table += fmt::format("{:>6}{:>8}{:>8}{:>9}{:>16}{:>12}", i + 1, settings.batch, settings.accum,
                         settings.threads, settings.update_threads, SizeText(settings.tile_elems));
    table += step_s ? fmt::format("{:>10}{:>10.0f}{}\n", FormatDuration(*step_s),
                                  static_cast<double>(report.tokens_per_step) / *step_s,
                                  i == outcome.best ? "   best" : "")
                    : fmt::format("  {}\n", why_not.substr(0, why_not.find_first_of(".\n")));
  }
  table += fmt::format("the trials wrote {} to the disk\n", FormatBytes(report.written_bytes));
  const std::string flags = BestFlags(report);
  if (flags.empty()) return table + "the settings as given were the fastest\n";
  return table +
         fmt::format("{:.0f} % faster than as given with: {}\n", GainPercent(report), flags);
}

}  // namespace forebay
