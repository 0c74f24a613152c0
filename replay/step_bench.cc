#include "forebay/replay/step_bench.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/folding_engine.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/measure/load/load_thread.h"
#include "forebay/memory/available_memory.h"
#include "forebay/offload/create_store.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {
namespace {

// A disk that others use too is measured by what it can do while this runs.
constexpr double kProbeSeconds = 1;
constexpr double kProbeWarmupSeconds = 0.2;
// Shorter files of a store (its commit records) hold what they should.
constexpr int64_t kLeastFoldedBytes = 64 << 10;
// Operations of the largest kind that the common file holds, so that every file of the store has
// room for its own.
constexpr int64_t kLeastOpsInFile = 16;
constexpr int kMaxSteps = 1000;
// Of the memory that is available, where --ram does not say: as the trainer.
constexpr int64_t kRamPercent = 80;

int64_t StepBytes(const OffloadPlan& plan) {
  return plan.read_bytes_per_step + plan.write_bytes_per_step;
}

// Folders for a store, which go with what is in them.
class ScratchFolders {
 public:
  ScratchFolders() = default;
  // Requires: no store is open in them.
  ~ScratchFolders() {
    if (paths_.empty()) return;
    // What is left after an error here is some kilobytes in folders that say what they are.
    TensorStore::Remove(paths_).status().IgnoreError();
    for (const std::string& path : paths_) ::rmdir(path.c_str());
  }
  ScratchFolders(const ScratchFolders&) = delete;
  ScratchFolders& operator=(const ScratchFolders&) = delete;

  absl::Status MakeIn(const std::string& parent) {
    std::string path = JoinPath(parent, "swap-bench-step-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) {
      return StorageError(fmt::format("making a folder in '{}' failed", parent), errno);
    }
    paths_.push_back(std::move(path));
    return absl::OkStatus();
  }
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

class StepBench {
 public:
  StepBench(const StepBenchOptions& options, const BenchHooks& hooks)
      : options_(options), hooks_(hooks) {}

  absl::StatusOr<StepBenchReport> Run() {
    report_.options = options_;
    FOREBAY_RETURN_IF_ERROR(ChooseBuffers());
    FOREBAY_RETURN_IF_ERROR(ChooseFile());
    FOREBAY_RETURN_IF_ERROR(OpenSession());
    FOREBAY_ASSIGN_OR_RETURN(const double bytes_per_s, ProbeBandwidth());
    for (const PlanStripe& stripe : report_.whole.stripes) {
      report_.most_folder_bytes = std::max(report_.most_folder_bytes, stripe.nvme_bytes);
    }
    FOREBAY_ASSIGN_OR_RETURN(
        report_.num_blocks,
        BlocksToReplay(inputs(), bytes_per_s, options_.seconds, report_.budget_bytes));
    FOREBAY_CHECK(report_.num_blocks > 0);  // ChooseBuffers saw to it
    FOREBAY_RETURN_IF_ERROR(Replay());
    NoteHeat(report_.bench);
    return std::move(report_);
  }

 private:
  int num_folders() const { return static_cast<int>(options_.targets.size()); }
  ReplayInputs& inputs() { return report_.options.replay; }
  bool Stopped() const { return hooks_.stop && hooks_.stop(); }

  // The most comfortable buffers with which something can be replayed.
  absl::Status ChooseBuffers() {
    report_.budget_bytes =
        options_.ram_bytes > 0 ? options_.ram_bytes : AvailableMemoryBytes() / 100 * kRamPercent;
    inputs().stripe_weights.assign(options_.targets.size(), 1);  // until they are known
    const int least = std::min(kLeastSliceBlocks, inputs().num_blocks());
    int64_t needed_bytes = 0;
    for (const StepBuffers& buffers : StepBufferChoices(num_folders())) {
      inputs().offload.buffers = buffers;
      FOREBAY_ASSIGN_OR_RETURN(const OffloadPlan slice,
                               PlanReplay(WithFewerBlocks(inputs(), least)));
      FOREBAY_ASSIGN_OR_RETURN(report_.whole, PlanReplay(inputs()));
      needed_bytes = BufferBytes(slice);
      if (needed_bytes <= report_.budget_bytes) return absl::OkStatus();
    }
    return DoesNotFitError(fmt::format(
        "replaying a step needs {} MiB of memory for the window, staging tiles and gradients of {} "
        "blocks; {}. {}Use --ram={}MiB or more on a machine that has it",
        MebibytesUp(needed_bytes), least,
        options_.ram_bytes > 0
            ? fmt::format("--ram is {}", FormatBinaryBytesDown(report_.budget_bytes))
            : fmt::format("{} % of what is available is {}", kRamPercent,
                          FormatBinaryBytesDown(report_.budget_bytes)),
        inputs().offload.gradients_tier == TierChoice::kHost
            ? "With --gradients=nvme, as a run of a model this large has it, less is needed. "
            : "",
        MebibytesUp(needed_bytes)));
  }

  absl::Status ChooseFile() {
    const int64_t store_bytes = report_.whole.nvme_bytes;
    int64_t largest_op_bytes = report_.whole.tiles.max_state_bytes();
    if (report_.whole.activations.num_spilled > 0) {
      largest_op_bytes = std::max(largest_op_bytes, SpilledActivations::kMostTransferBytes);
    }
    const int64_t least_bytes = std::min(store_bytes, kLeastOpsInFile * largest_op_bytes);
    if (options_.size_bytes < least_bytes) {
      return UsageError(fmt::format(
          "--size is {}, but transfers of up to {} need a file of {} or more: take --size={}MiB, "
          "or smaller tiles (--tile_elems)",
          FormatBinaryBytes(options_.size_bytes), FormatBinaryBytes(largest_op_bytes),
          FormatBinaryBytes(least_bytes), MebibytesUp(least_bytes)));
    }
    report_.file_bytes = std::min(options_.size_bytes, store_bytes) / kIoAlignBytes * kIoAlignBytes;
    return absl::OkStatus();
  }

  absl::Status OpenSession() {
    job_.targets = options_.targets;
    job_.loads = {MixedLoad()};
    job_.engine = options_.engine;
    job_.strict = options_.strict;
    job_.size_bytes = report_.file_bytes;
    job_.seconds = kProbeSeconds;
    job_.warmup_s = kProbeWarmupSeconds;
    job_.seed = options_.seed;
    job_.repeats = 1;
    job_.depth = std::clamp(kMaxDepthPerThread / num_folders(), 1, job_.depth);
    // A small store is shorter than a whole depth of blocks.
    while (job_.depth > 1 && LeastFileBytes(job_) > job_.size_bytes) job_.depth /= 2;
    while (job_.block_bytes > kIoAlignBytes && LeastFileBytes(job_) > job_.size_bytes) {
      job_.block_bytes /= 2;
    }
    FOREBAY_ASSIGN_OR_RETURN(session_, BenchSession::Open(job_, hooks_));
    FOREBAY_RETURN_IF_ERROR(LookAtFileSystems());
    report_.bench = BeginReport(job_, *session_);
    std::vector<int> all(options_.targets.size());
    std::iota(all.begin(), all.end(), 0);
    engine_ = session_->EngineOf(all);
    for (const auto& target : session_->targets()) {
      if (target->engine == engine_) report_.engine_line = target->engine_line;
    }
    return absl::OkStatus();
  }

  // Reads and writes in the proportion of a step.
  LoadKind MixedLoad() const {
    const OffloadPlan& whole = report_.whole;
    return {LoadOp::kMixed, static_cast<int>(100 * whole.read_bytes_per_step / StepBytes(whole))};
  }

  // Tries each folder alone, gives each its share of the store, and returns what all do together.
  absl::StatusOr<double> ProbeBandwidth() {
    std::vector<double> speeds;
    for (int i = 0; i < num_folders(); ++i) {
      const double weight = 1;
      FOREBAY_ASSIGN_OR_RETURN(
          const PassResult pass,
          session_->Pass(job_, MixedLoad(), {&i, 1}, {&weight, 1}, engine_, hooks_));
      speeds.push_back(pass.bytes_per_s());
    }
    if (num_folders() == 1) return speeds[0];
    // What completed nothing in its pass is slow, and not without any share.
    for (double& speed : speeds) speed = std::max(speed, 1e-3 * std::ranges::max(speeds) + 1);
    inputs().stripe_weights = ChooseWeights(speeds);
    FOREBAY_ASSIGN_OR_RETURN(report_.whole, PlanReplay(inputs()));
    return TogetherPerSecond(speeds, inputs().stripe_weights);
  }

  absl::Status LookAtFileSystems() {
    for (const JobTarget& target : options_.targets) {
      struct stat info = {};
      if (::stat(target.directory.c_str(), &info) != 0) {
        return StorageError(fmt::format("looking at '{}' failed", target.directory), errno);
      }
      file_systems_.push_back(info.st_dev);
    }
    return absl::OkStatus();
  }
  // Of the engine, which has a queue for each file system.
  int num_disks() const {
    return static_cast<int>(std::set(file_systems_.begin(), file_systems_.end()).size());
  }

  StripeWeights ChooseWeights(const std::vector<double>& speeds) {
    if (options_.targets[0].weight > 0) {
      report_.weights_origin = "as asked for";
      std::vector<double> asked;
      for (const JobTarget& target : options_.targets) asked.push_back(target.weight);
      return WeightsInProportion(asked);
    }
    std::vector<std::string> texts;
    for (const double speed : speeds) texts.push_back(fmt::format("{:.2f}", speed / 1e9));
    report_.weights_origin = fmt::format("measured: {} GB/s", fmt::join(texts, " and "));
    return WeightsOfSpeeds(speeds, file_systems_);
  }

  // Who has most to do for its speed sets the pace; folders on one file system share that.
  double TogetherPerSecond(const std::vector<double>& speeds, const StripeWeights& weights) const {
    const auto total = static_cast<double>(Total(weights));
    double least = std::numeric_limits<double>::max();
    for (size_t i = 0; i < speeds.size(); ++i) {
      const auto sharing = static_cast<double>(std::ranges::count(file_systems_, file_systems_[i]));
      least = std::min(least, speeds[i] / sharing * total / static_cast<double>(weights[i]));
    }
    return least;
  }

  absl::StatusOr<std::vector<FoldOptions>> MakeFolders(const OffloadPlan& plan, Engine& engine,
                                                       ScratchFolders& folders) {
    std::vector<FoldOptions> folds;
    for (size_t i = 0; i < options_.targets.size(); ++i) {
      FOREBAY_RETURN_IF_ERROR(folders.MakeIn(options_.targets[i].directory));
      FOREBAY_ASSIGN_OR_RETURN(const int file, session_->targets()[i]->file.AddTo(engine));
      folds.push_back({.folder = folders.paths().back(),
                       .file = file,
                       .size_bytes = report_.file_bytes,
                       .least_bytes = kLeastFoldedBytes,
                       .unfolded_name = kSealsName,
                       .together_bytes = plan.stripes[i].nvme_bytes});
    }
    return folds;
  }

  absl::Status Replay() {
    const ReplayInputs slice = WithFewerBlocks(inputs(), report_.num_blocks);
    FOREBAY_ASSIGN_OR_RETURN(const OffloadPlan plan, PlanReplay(slice));
    EngineOptions engine_options;  // the trainer's
    engine_options.num_threads *= num_disks();
    engine_options.report = [this](const std::string& line) {
      const std::lock_guard lock(warnings_mutex_);  // several threads wait for transfers
      report_.bench.warnings.push_back(line);
    };
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             MakeEngineOf(engine_, engine_options));
    report_.engine = NameOf(engine_);
    ScratchFolders folders;
    FOREBAY_ASSIGN_OR_RETURN(std::vector<FoldOptions> folds, MakeFolders(plan, *engine, folders));
    FoldingEngine folding(engine.get(), std::move(folds));
    StoreOptions store_options = StoreOptionsOf(plan, folders.paths());
    store_options.unfilled = true;
    FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                             TensorStore::Create(store_options, slice.inventory, &folding));
    MemoryBudget budget(report_.budget_bytes);
    FOREBAY_ASSIGN_OR_RETURN(
        const std::unique_ptr<StepReplay> replay,
        StepReplay::Create(plan, {slice.offload, options_.compute, options_.num_threads},
                           std::move(store), &budget));
    const std::string not_registered = engine->RegistrationNote();
    if (!not_registered.empty()) report_.bench.warnings.push_back(not_registered);
    FOREBAY_RETURN_IF_ERROR(RunSteps(*replay, *engine, plan));
    report_.peak_bytes = budget.peak_bytes();
    return absl::OkStatus();
  }

  absl::Status RunSteps(StepReplay& replay, Engine& engine, const OffloadPlan& plan) {
    const Stopwatch watch;
    const int64_t before_bytes = MovedBytes(engine);
    const auto stop = [&] {
      if (hooks_.progress) {
        const double elapsed_s = watch.Seconds();
        hooks_.progress(
            fmt::format("replaying {} of {} layers", report_.num_blocks, inputs().num_blocks()),
            std::min(1.0, elapsed_s / options_.seconds),
            static_cast<double>(MovedBytes(engine) - before_bytes) / elapsed_s);
      }
      return Stopped();
    };
    FOREBAY_RETURN_IF_ERROR(replay.Start(stop));
    const IoStats before = engine.stats();
    std::vector<ReplayedStep> steps;
    do {
      FOREBAY_ASSIGN_OR_RETURN(steps.emplace_back(), replay.RunStep(stop));
    } while (watch.Seconds() + steps.back().seconds < options_.seconds &&
             std::ssize(steps) < kMaxSteps);
    Summarize(steps, before, engine.stats(), plan);
    return absl::OkStatus();
  }

  static int64_t MovedBytes(const Engine& engine) {
    const IoStats stats = engine.stats();
    return stats.read_bytes + stats.write_bytes;
  }

  void Summarize(const std::vector<ReplayedStep>& steps, const IoStats& before,
                 const IoStats& after, const OffloadPlan& plan) {
    std::vector<double> seconds;
    double total_s = 0;
    for (const ReplayedStep& step : steps) {
      seconds.push_back(step.seconds);
      total_s += step.seconds;
      report_.committing += step.commit_s;
      report_.updating += step.update_s;
    }
    report_.num_steps = static_cast<int>(steps.size());
    report_.slice_transfers = steps.back().transfers;
    report_.slice_s = SpreadOf(seconds);
    const double scale =
        static_cast<double>(StepBytes(report_.whole)) / static_cast<double>(StepBytes(plan));
    report_.step_s = {report_.slice_s.median * scale, report_.slice_s.min * scale,
                      report_.slice_s.max * scale};
    const double disks_s = total_s * num_disks();
    report_.reading = static_cast<double>(after.read_us - before.read_us) * 1e-6 / disks_s;
    report_.writing = static_cast<double>(after.write_us - before.write_us) * 1e-6 / disks_s;
    report_.committing /= total_s;
    report_.updating /= total_s;
  }

  const StepBenchOptions& options_;
  const BenchHooks& hooks_;
  Job job_;
  std::unique_ptr<BenchSession> session_;
  EngineKind engine_ = EngineKind::kAuto;
  std::vector<uint64_t> file_systems_;  // by folder
  std::mutex warnings_mutex_;
  StepBenchReport report_;
};

}  // namespace

absl::StatusOr<int> BlocksToReplay(const ReplayInputs& whole, double bytes_per_s, double seconds,
                                   int64_t ram_bytes) {
  const int all = whole.num_blocks();
  int chosen = 0;
  for (int blocks = std::min(kLeastSliceBlocks, all); blocks <= all; ++blocks) {
    FOREBAY_ASSIGN_OR_RETURN(const OffloadPlan plan, PlanReplay(WithFewerBlocks(whole, blocks)));
    if (BufferBytes(plan) > ram_bytes) break;
    // A backward pass goes before, so that the window is as between steps.
    const int64_t bytes = StepBytes(plan) + plan.tiles.weight_area_bytes();
    const bool in_time = static_cast<double>(bytes) <= bytes_per_s * seconds;
    if (chosen > 0 && !in_time) break;
    chosen = blocks;
  }
  return chosen;
}

absl::StatusOr<StepBenchReport> RunStepBench(const StepBenchOptions& options,
                                             const BenchHooks& hooks) {
  return StepBench(options, hooks).Run();
}

Json StepToJson(const StepBenchReport& report, double rated_tbw) {
  const ReplayInputs& inputs = report.options.replay;
  const OffloadPlan& whole = report.whole;
  const auto params = static_cast<double>(inputs.inventory.num_params());
  const auto read_bytes = static_cast<double>(whole.read_bytes_per_step);
  const auto write_bytes = static_cast<double>(whole.write_bytes_per_step);
  const auto spread = [](const Spread& values) {
    return Json{{"median", values.median}, {"min", values.min}, {"max", values.max}};
  };
  Json json;
  json["params"] = inputs.inventory.num_params();
  json["blocks"] = inputs.num_blocks();
  json["layout"] = NameOf(inputs.offload.layout);
  json["gradients"] = inputs.offload.gradients_tier == TierChoice::kHost ? "ram" : "nvme";
  json["activations"] = NameOf(inputs.offload.activations_tier);
  json["activation_bytes"] = whole.activations.activation_bytes;
  json["gradient_dtype"] = NameOf(inputs.offload.grad_dtype);
  json["tile_elems"] = inputs.offload.tile_elems;
  json["num_block_buffers"] = whole.window.num_block_buffers;
  json["num_staging_tiles"] = whole.num_staging_tiles;
  json["durability"] = NameOf(inputs.offload.durability);
  json["compute"] = report.options.compute == ReplayCompute::kNone ? "none" : "adamw";
  json["engine"] = report.engine;
  json["engine_line"] = report.engine_line;
  json["seconds"] = spread(report.step_s);
  json["read_bytes"] = whole.read_bytes_per_step;
  json["write_bytes"] = whole.write_bytes_per_step;
  json["read_bytes_per_param"] = read_bytes / params;
  json["write_bytes_per_param"] = write_bytes / params;
  json["store_bytes"] = whole.nvme_bytes;
  json["reading"] = report.reading;
  json["writing"] = report.writing;
  json["committing"] = report.committing;
  json["updating"] =
      report.options.compute == ReplayCompute::kNone ? Json(nullptr) : Json(report.updating);
  json["rated_tbw"] = rated_tbw;
  json["steps_until_tbw"] = static_cast<int64_t>(rated_tbw * 1e12 / write_bytes);
  json["extrapolated"] = report.sliced();
  json["stripes"] = Json::array();
  for (size_t i = 0; i < report.options.targets.size(); ++i) {
    json["stripes"].push_back({{"folder", report.options.targets[i].directory},
                               {"weight", whole.stripes[i].weight},
                               {"store_bytes", whole.stripes[i].nvme_bytes}});
  }
  Json replayed = {{"blocks", report.num_blocks},
                   {"steps", report.num_steps},
                   {"seconds", spread(report.slice_s)}};
  replayed["read_bytes"] = report.slice_transfers.read_bytes;
  replayed["write_bytes"] = report.slice_transfers.write_bytes;
  replayed["folded"] = report.folded();
  replayed["file_bytes"] = report.file_bytes;
  replayed["budget_bytes"] = report.budget_bytes;
  replayed["host_peak_bytes"] = report.peak_bytes;
  json["replayed"] = std::move(replayed);
  return json;
}

}  // namespace forebay
