#include "forebay/replay/step_bench.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
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
#include "forebay/measure/load_thread.h"
#include "forebay/memory/available_memory.h"

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

int64_t TotalBytes(const StepTransfers& transfers) {
  return transfers.read_bytes + transfers.write_bytes;
}

// A store in a folder of its own, which goes with it.
class ScratchStore {
 public:
  ScratchStore() = default;
  ~ScratchStore() {
    store_.reset();
    if (directory_.empty()) return;
    // What is left after an error here is some kilobytes in a folder that says what it is.
    TensorStore::Remove({directory_}).status().IgnoreError();
    ::rmdir(directory_.c_str());
  }
  ScratchStore(const ScratchStore&) = delete;
  ScratchStore& operator=(const ScratchStore&) = delete;

  absl::Status Create(const std::string& parent, const ReplayPlan& plan, Engine* engine) {
    std::string path = JoinPath(parent, "swap-bench-step-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) {
      return StorageError(fmt::format("making a folder in '{}' failed", parent), errno);
    }
    directory_ = path;
    StoreOptions options;
    options.directories = {directory_};
    options.layout = plan.options.layout;
    options.tile_elems = plan.options.tile_elems;
    options.gradient_area_bytes = plan.gradient_area_bytes;
    options.unfilled = true;
    FOREBAY_ASSIGN_OR_RETURN(store_, TensorStore::Create(options, plan.inventory, engine));
    return absl::OkStatus();
  }
  TensorStore* get() { return store_.get(); }

 private:
  std::string directory_;
  std::unique_ptr<TensorStore> store_;
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
    report_.num_blocks =
        BlocksToReplay(report_.whole, bytes_per_s, options_.seconds, report_.budget_bytes);
    FOREBAY_CHECK(report_.num_blocks > 0);  // ChooseBuffers saw to it
    FOREBAY_RETURN_IF_ERROR(Replay());
    return std::move(report_);
  }

 private:
  bool Stopped() const { return hooks_.stop && hooks_.stop(); }

  // The most comfortable buffers with which something can be replayed.
  absl::Status ChooseBuffers() {
    report_.budget_bytes =
        options_.ram_bytes > 0 ? options_.ram_bytes : AvailableMemoryBytes() / 100 * kRamPercent;
    ReplayOptions replay = options_.replay;
    for (const StepBuffers& buffers : StepBufferChoices(/*num_stripes=*/1)) {
      replay.buffers = buffers;
      report_.whole = PlanReplay(options_.inventory, replay);
      if (BlocksToReplay(report_.whole, 0, 0, report_.budget_bytes) > 0) return absl::OkStatus();
    }
    const int least = std::min(kLeastSliceBlocks, report_.whole.num_blocks());
    const ReplayPlan plan = PlanReplay(WithFewerBlocks(options_.inventory, least), replay);
    return DoesNotFitError(fmt::format(
        "replaying a step needs {} of memory for the window, staging tiles and gradients of {} "
        "blocks; {}. {}Use --ram={}MiB or more on a machine that has it",
        FormatBinaryBytes(plan.host_bytes), least,
        options_.ram_bytes > 0 ? fmt::format("--ram is {}", FormatBinaryBytes(report_.budget_bytes))
                               : fmt::format("{} % of what is available is {}", kRamPercent,
                                             FormatBinaryBytes(report_.budget_bytes)),
        replay.gradients == Tier::kHost
            ? "With --gradients=nvme, as a run of a model this large has it, less is needed. "
            : "",
        MebibytesUp(plan.host_bytes)));
  }

  absl::Status ChooseFile() {
    const int64_t least_bytes =
        std::min(report_.whole.store_bytes, kLeastOpsInFile * report_.whole.largest_op_bytes);
    if (options_.size_bytes < least_bytes) {
      return UsageError(fmt::format(
          "--size is {}, but transfers of up to {} need a file of {} or more: take --size={}MiB, "
          "or smaller tiles (--tile_elems)",
          FormatBinaryBytes(options_.size_bytes), FormatBinaryBytes(report_.whole.largest_op_bytes),
          FormatBinaryBytes(least_bytes), MebibytesUp(least_bytes)));
    }
    report_.file_bytes =
        std::min(options_.size_bytes, report_.whole.store_bytes) / kIoAlignBytes * kIoAlignBytes;
    return absl::OkStatus();
  }

  absl::Status OpenSession() {
    job_.targets = {{options_.directory, 0}};
    job_.loads = {MixedLoad()};
    job_.engine = options_.engine;
    job_.strict = options_.strict;
    job_.size_bytes = report_.file_bytes;
    job_.seconds = kProbeSeconds;
    job_.warmup_s = kProbeWarmupSeconds;
    job_.seed = options_.seed;
    job_.repeats = 1;
    // A small store is shorter than a whole depth of blocks.
    while (job_.depth > 1 && 2 * job_.depth * job_.block_bytes > job_.size_bytes) job_.depth /= 2;
    while (2 * job_.block_bytes > job_.size_bytes) job_.block_bytes /= 2;
    FOREBAY_ASSIGN_OR_RETURN(session_, BenchSession::Open(job_, hooks_));
    report_.bench = BeginReport(job_, *session_);
    report_.engine_line = target().engine_line;
    return absl::OkStatus();
  }

  // Reads and writes in the proportion of a step.
  LoadKind MixedLoad() const {
    const StepTransfers& transfers = report_.whole.transfers;
    return {LoadOp::kMixed, static_cast<int>(100 * transfers.read_bytes / TotalBytes(transfers))};
  }

  absl::StatusOr<double> ProbeBandwidth() {
    const int first = 0;
    const double weight = 1;
    FOREBAY_ASSIGN_OR_RETURN(
        const PassResult pass,
        session_->Pass(job_, MixedLoad(), {&first, 1}, {&weight, 1}, EngineKind::kAuto, hooks_));
    return pass.bytes_per_s();
  }

  BenchTarget& target() { return *session_->targets()[0]; }

  absl::Status Replay() {
    const ReplayPlan plan =
        PlanReplay(WithFewerBlocks(options_.inventory, report_.num_blocks), report_.whole.options);
    EngineOptions engine_options;  // the trainer's
    engine_options.report = [this](const std::string& line) {
      const std::lock_guard lock(warnings_mutex_);  // several threads wait for transfers
      report_.bench.warnings.push_back(line);
    };
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             MakeEngineOf(target().engine, engine_options));
    report_.engine = NameOf(target().engine);
    FOREBAY_ASSIGN_OR_RETURN(const int file, target().file.AddTo(*engine));
    FoldingEngine folding(engine.get(), {.file = file,
                                         .size_bytes = report_.file_bytes,
                                         .least_bytes = kLeastFoldedBytes,
                                         .together_bytes = plan.store_bytes});
    ScratchStore store;
    FOREBAY_RETURN_IF_ERROR(store.Create(options_.directory, plan, &folding));
    MemoryBudget budget(report_.budget_bytes);
    FOREBAY_ASSIGN_OR_RETURN(
        const std::unique_ptr<StepReplay> replay,
        StepReplay::Create(plan, options_.compute, options_.num_threads, store.get(), &budget));
    const std::string not_registered = engine->RegistrationNote();
    if (!not_registered.empty()) report_.bench.warnings.push_back(not_registered);
    FOREBAY_RETURN_IF_ERROR(RunSteps(*replay, *engine, plan));
    report_.peak_bytes = budget.peak_bytes();
    return absl::OkStatus();
  }

  absl::Status RunSteps(StepReplay& replay, Engine& engine, const ReplayPlan& plan) {
    const Stopwatch watch;
    const int64_t before_bytes = MovedBytes(engine);
    const auto stop = [&] {
      if (hooks_.progress) {
        const double elapsed_s = watch.Seconds();
        hooks_.progress(
            fmt::format("replaying {} of {} layers", plan.num_blocks(), report_.whole.num_blocks()),
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
                 const IoStats& after, const ReplayPlan& plan) {
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
    const double scale = static_cast<double>(TotalBytes(report_.whole.transfers)) /
                         static_cast<double>(TotalBytes(plan.transfers));
    report_.step_s = {report_.slice_s.median * scale, report_.slice_s.min * scale,
                      report_.slice_s.max * scale};
    report_.reading = static_cast<double>(after.read_us - before.read_us) * 1e-6 / total_s;
    report_.writing = static_cast<double>(after.write_us - before.write_us) * 1e-6 / total_s;
    report_.committing /= total_s;
    report_.updating /= total_s;
  }

  const StepBenchOptions& options_;
  const BenchHooks& hooks_;
  Job job_;
  std::unique_ptr<BenchSession> session_;
  std::mutex warnings_mutex_;
  StepBenchReport report_;
};

}  // namespace

int BlocksToReplay(const ReplayPlan& whole, double bytes_per_s, double seconds, int64_t ram_bytes) {
  const int all = whole.num_blocks();
  int chosen = 0;
  for (int blocks = std::min(kLeastSliceBlocks, all); blocks <= all; ++blocks) {
    const ReplayPlan plan = PlanReplay(WithFewerBlocks(whole.inventory, blocks), whole.options);
    if (plan.host_bytes > ram_bytes) break;
    // A backward pass goes before, so that the window is as between steps.
    const int64_t bytes = TotalBytes(plan.transfers) + plan.tiles.weight_area_bytes();
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
  const ReplayPlan& whole = report.whole;
  const auto params = static_cast<double>(whole.inventory.num_params());
  const auto transfers = [](const StepTransfers& bytes) {
    return Json{{"read_bytes", bytes.read_bytes}, {"write_bytes", bytes.write_bytes}};
  };
  const auto spread = [](const Spread& values) {
    return Json{{"median", values.median}, {"min", values.min}, {"max", values.max}};
  };
  Json json;
  json["params"] = whole.inventory.num_params();
  json["blocks"] = whole.num_blocks();
  json["layout"] = NameOf(whole.options.layout);
  json["gradients"] = whole.options.gradients == Tier::kHost ? "ram" : "nvme";
  json["gradient_dtype"] = whole.options.gradient_is_bf16 ? "bf16" : "fp32";
  json["tile_elems"] = whole.options.tile_elems;
  json["num_block_buffers"] = whole.window.num_block_buffers;
  json["num_staging_tiles"] = whole.options.buffers.num_staging_tiles;
  json["durability"] = "step";
  json["compute"] = report.options.compute == ReplayCompute::kNone ? "none" : "adamw";
  json["engine"] = report.engine;
  json["engine_line"] = report.engine_line;
  json["seconds"] = spread(report.step_s);
  json.update(transfers(whole.transfers));
  json["read_bytes_per_param"] = static_cast<double>(whole.transfers.read_bytes) / params;
  json["write_bytes_per_param"] = static_cast<double>(whole.transfers.write_bytes) / params;
  json["store_bytes"] = whole.store_bytes;
  json["reading"] = report.reading;
  json["writing"] = report.writing;
  json["committing"] = report.committing;
  json["updating"] =
      report.options.compute == ReplayCompute::kNone ? Json(nullptr) : Json(report.updating);
  json["rated_tbw"] = rated_tbw;
  json["steps_until_tbw"] =
      static_cast<int64_t>(rated_tbw * 1e12 / static_cast<double>(whole.transfers.write_bytes));
  json["extrapolated"] = report.sliced();
  Json replayed = {{"blocks", report.num_blocks},
                   {"steps", report.num_steps},
                   {"seconds", spread(report.slice_s)}};
  replayed.update(transfers(report.slice_transfers));
  replayed["folded"] = report.folded();
  replayed["file_bytes"] = report.file_bytes;
  replayed["budget_bytes"] = report.budget_bytes;
  replayed["host_peak_bytes"] = report.peak_bytes;
  json["replayed"] = std::move(replayed);
  return json;
}

}  // namespace forebay
