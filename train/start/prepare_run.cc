#include "forebay/train/start/prepare_run.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/process/cores.h"
#include "forebay/data/row_sampler.h"
#include "forebay/memory/address_space.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/train/export/export_weights.h"
#include "forebay/train/files/fingerprint.h"
#include "forebay/train/files/pack_cache.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/swap_area.h"
#include "forebay/train/files/written_record.h"
#include "forebay/train/options/lr_schedule_table.h"
#include "forebay/train/options/traced_steps.h"
#include "forebay/train/plan/disk_profile.h"
#include "forebay/train/plan/stripe_weights.h"
#include "forebay/train/plan/write_budget.h"
#include "forebay/train/speeds/calibration.h"
#include "forebay/train/start/agree_on_run.h"
#include "forebay/train/start/claim_folders.h"
#include "forebay/train/start/create_run.h"
#include "forebay/train/start/gpu_of_rank.h"
#include "forebay/train/start/resume_run.h"
#include "forebay/train/start/unlike_others.h"

namespace forebay {
namespace {

// Those that read ahead, update, export, watch for signals, and one to spare.
constexpr int kThreadsBesideComputation = 5;

absl::StatusOr<std::unique_ptr<PackedFile>> OpenData(const std::string& data,
                                                     const PreparedRun& run,
                                                     TrainObserver& observer,
                                                     const std::function<bool()>& stop) {
  const TrainOptions& options = run.options;
  PackRequest request;
  request.data = data;
  request.model = run.model_directory;
  request.seq = options.seq;
  request.truncate = options.truncate;
  FOREBAY_ASSIGN_OR_RETURN(const PackResult packed, PackedInCache(std::move(request), stop));
  for (const std::string& note : packed.notes) observer.OnNote("data: " + note);
  const std::string& path = packed.path;
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<PackedFile> file, PackedFile::Open(path));
  const PackedFileInfo& info = file->info();
  if (info.seq != options.seq) {
    return BadInputError(fmt::format(
        "'{}' is packed in rows of {} tokens, but --seq is {}. Use --seq={} or pack it again", path,
        info.seq, options.seq, info.seq));
  }
  if (info.vocab_size > run.config.vocab_size) {
    return BadInputError(
        fmt::format("'{}' was packed for a vocabulary of {} tokens; the model has {}", path,
                    info.vocab_size, run.config.vocab_size));
  }
  if (info.num_trained == 0) {
    return BadInputError(fmt::format("'{}' has no token that would be trained", data));
  }
  return file;
}

absl::StatusOr<int64_t> NumSteps(const TrainOptions& options, int64_t rows_per_step,
                                 const PackedFileInfo& data) {
  if (options.steps > 0) return options.steps;
  const int64_t per_epoch = RowSampler(data.num_rows, options.seed).StepsPerEpoch(rows_per_step);
  const double steps = std::ceil(options.epochs * static_cast<double>(per_epoch));
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

// The folders of the swap area as a plan sees them.
absl::StatusOr<MachineLimits> AskLimits(const PreparedRun& run, DiskProfile& profile) {
  TrainOptions options = run.options;
  if (run.resumed) options.nvme = run.store->directories();
  MachineLimits limits = AskMachine(options);
  FOREBAY_ASSIGN_OR_RETURN(profile, ReadDiskProfile(options.bench, SwapFoldersOf(options)));
  AddRates(profile, limits);
  return limits;
}

// The bytes that earlier sessions wrote, and the steps that --max_tbw leaves after them.
void CountWrittenBefore(PreparedRun& run) {
  run.plan.written_before_bytes = WrittenBefore(
      run.paths, run.store->committed(),
      {.making_bytes = StoreFillBytes(run.plan), .step_bytes = MostBytesOfAStep(run.plan)});
  run.plan.steps_within_limit = StepsWithinLimit(run.plan, run.options);
}

// The plan, and for a new run the engine and the shares of its folders. Trying an engine, or the
// speed of a disk, writes a small file: only when the plan has found room, in whatever shares.
absl::Status PlanRun(const std::function<bool()>& stop, TrainObserver& observer,
                     const TrainEnvironment& environment, PreparedRun& run) {
  if (environment.ranks != nullptr) {
    FOREBAY_RETURN_IF_ERROR(
        TakeDeviceOfRank(environment.local_rank, *environment.ranks, run.options));
  }
  DiskProfile profile;
  FOREBAY_ASSIGN_OR_RETURN(MachineLimits limits, AskLimits(run, profile));
  if (environment.ranks != nullptr) {
    limits.available_memory_bytes /= environment.ranks->num_ranks_here();
  }
  StripeShares shares =
      run.resumed ? StripeShares{run.store->tiles().stripe_weights(), "", /*is_fixed=*/true}
                  : KnownShares(run.options, profile, limits);
  SetWeights(shares, limits);
  // As `plan` has it: with the speeds that are kept of this machine.
  const auto plan = [&]() -> absl::Status {
    MachineLimits known = limits;
    Calibration::OfThisUser().AddTo(run.config, run.options, known);
    FOREBAY_ASSIGN_OR_RETURN(run.plan, MakePlan(run.config, run.options, known));
    if (run.resumed) CountWrittenBefore(run);
    return absl::OkStatus();
  };
  FOREBAY_RETURN_IF_ERROR(plan());
  const auto show = [&] {
    observer.OnPlan(FormatPlan(run.plan, run.config, run.options), ToJson(run.plan));
  };
  const int num_threads = 2 * run.options.threads + run.options.update_threads +
                          run.options.io_threads * static_cast<int>(limits.disks.size()) +
                          kThreadsBesideComputation;
  FOREBAY_RETURN_IF_ERROR(CheckAddressSpace(run.plan.host_bytes - kRuntimeBytes, num_threads));
  // A dry run leaves the disks in peace, and so does a run that has nothing on them.
  const bool has_store = run.resumed || run.plan.StoreBytes() > 0;
  const bool measures = has_store && !run.resumed && !run.options.dry_run &&
                        limits.disks.size() > 1 && shares.origin.empty();
  if (!measures) show();
  if (!has_store) {
    run.engine = CreateThreadsEngine({});
    run.engine_line = "none is used";
  } else if (!run.resumed) {
    FOREBAY_RETURN_IF_ERROR(
        OpenEngineFor(NewStoreDirectories(run.options), observer, environment, run));
  }
  if (measures) {
    FOREBAY_ASSIGN_OR_RETURN(shares, MeasuredShares(*run.engine, limits, stop));
    SetWeights(shares, limits);
    FOREBAY_RETURN_IF_ERROR(plan());
    show();
  }
  run.options.device = run.plan.on_gpu() ? ComputeDevice::kCuda : ComputeDevice::kCpu;
  if (run.plan.lacks_room_for_two) {
    observer.OnWarning(
        "the disk has no room for two copies of the state, so this run keeps one "
        "(--durability=none): a crash or a power cut loses all since the last export, Ctrl-C "
        "nothing. With --save_every it exports on the way");
  }
  if (limits.disks.size() > 1) {
    const StripeWeights& weights = run.plan.tiles.stripe_weights();
    if (weights != shares.weights) shares.origin += "; less where there is no room for more";
    run.stripes_line = SharesText(run.resumed ? run.store->directories() : run.options.nvme,
                                  weights, shares.origin);
  }
  return absl::OkStatus();
}

// Configuration and small files of the model, and for a new run its weights.
absl::Status ReadModel(PreparedRun& run, ModelSource& source) {
  if (run.files.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(source.files, ReadModelFiles(run.model_directory));
    run.files = DescribeFiles(source.files);
  }
  FOREBAY_ASSIGN_OR_RETURN(run.config, ReadDecoderConfig(run.model_directory));
  // The result takes it along; that it is damaged should not be found by the first text after days.
  if (!source.files.empty()) {
    FOREBAY_RETURN_IF_ERROR(ReadStopTokens(run.model_directory, run.config).status());
  }
  const RankPart part = PartOf(run.options);
  run.parts = PartsOf(run.config, part);
  if (!run.resumed && !source.copied.has_value()) return OpenWeights(run, source);
  const std::string config = JoinPath(run.model_directory, kConfigName);
  return run.resumed
             ? CheckWeightsAreOf(InventoryOf(run.config, part), run.store->inventory(), config)
             : CheckWeightsAreOf(BuildInventory(run.config), source.copied->state->inventory(),
                                 config);
}

// The one that made the tokens must be the one that the run keeps.
absl::Status CheckTokenizerIsTheRuns(const PreparedRun& run) {
  const std::string& digest = run.data->info().tokenizer_digest;
  const auto own = std::ranges::find(run.files, kTokenizerName, &ExportedFile::name);
  if (digest.empty() || own == run.files.end() || own->digest == digest) return absl::OkStatus();
  return BadInputError(
      fmt::format("'{}' was written while the run was started. Start it again once that is done",
                  JoinPath(run.model_directory, kTokenizerName)));
}

// Whether a new run comes to a first step.
absl::Status CheckWriteLimit(const PreparedRun& run) {
  const int64_t limit = MostWrittenBytes(run.options);
  const int64_t fill = StoreFillBytes(run.plan);
  const int64_t steps = 2 * MostBytesOfAStep(run.plan);
  if (limit == 0 || limit >= fill + steps) return absl::OkStatus();
  return DoesNotFitError(fmt::format(
      "--max_tbw={} is less than what making the swap area ({}) and a first step with saving it "
      "({}) may write. Give at least {:.3g}",
      run.options.max_tbw, FormatBytes(fill), FormatBytes(steps),
      1.001e-12 * static_cast<double>(fill + steps)));
}

// The budget, with what does not depend on how far the run is.
absl::Status MakeBudget(PreparedRun& run) {
  run.budget = std::make_unique<MemoryBudget>(run.plan.ram_budget_bytes);
  FOREBAY_RETURN_IF_ERROR(run.budget->Charge("runtime", kRuntimeBytes));
  FOREBAY_RETURN_IF_ERROR(run.budget->Charge(
      "checksums of the store", TensorStore::SealBytes(run.plan.tiles, run.plan.num_slots)));
  if (run.options.save_every > 0) {
    FOREBAY_RETURN_IF_ERROR(run.budget->Charge("export beside the steps", kExportBytes));
  }
  if (run.ranks != nullptr) {
    FOREBAY_RETURN_IF_ERROR(run.budget->Charge("messages between ranks", kRankScratchBytes));
  }
  if (!run.options.trace.empty()) {
    FOREBAY_RETURN_IF_ERROR(run.budget->Charge("trace of some steps", kTraceBytes));
  }
  return absl::OkStatus();
}

absl::Status CountSteps(PreparedRun& run) {
  FOREBAY_ASSIGN_OR_RETURN(run.num_steps,
                           NumSteps(run.options, run.rows_per_step, run.data->info()));
  if (run.options.warmup > run.num_steps) {
    return UsageError(fmt::format(
        "--warmup={} is longer than the run: --epochs={} of '{}' are {} steps of {} rows, so the "
        "learning rate would never reach --lr",
        run.options.warmup, run.options.epochs, run.options.data, run.num_steps,
        run.rows_per_step));
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedRun> Prepare(const ResolvedOptions& resolved,
                                    const std::function<bool()>& stop, TrainObserver& observer,
                                    const TrainEnvironment& environment) {
  PreparedRun run;
  run.options = resolved.options;
  run.ranks = environment.ranks;
  run.rows_per_step = run.options.batch * run.options.accum;
  FOREBAY_RETURN_IF_ERROR(TakePartOfRank(environment.rank(), environment.num_ranks(), run.options));
  if (run.options.threads <= 0) run.options.threads = DefaultThreads();
  run.paths = RunPaths(run.options.out);
  run.model_directory = run.options.model;
  for (const std::string& note : resolved.notes) observer.OnNote(note);
  const std::string warning = run.ranks == nullptr ? "" : run.ranks->Warning();
  if (environment.rank() == 0 && !warning.empty()) observer.OnWarning(warning);
  // The folders first, then the model: a look at either costs nothing, while making tokens of the
  // data may take minutes.
  if (!run.options.resume) FOREBAY_RETURN_IF_ERROR(CheckFoldersAreFree(run.options));
  Json run_json;
  const auto source = std::make_shared<ModelSource>();
  if (run.options.resume) {
    FOREBAY_ASSIGN_OR_RETURN(run_json, OpenRunToResume(resolved, observer, environment, run));
  }
  if (!run.options.from.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(source->copied, OpenStateToCopy(run));
    run.model_directory = RunPaths(run.options.from).files;
  }
  FOREBAY_RETURN_IF_ERROR(ReadModel(run, *source));
  if (environment.rank() == 0) {
    FOREBAY_ASSIGN_OR_RETURN(const std::string unlike,
                             UnlikeOtherTrainers(run.model_directory, resolved));
    observer.OnNote(unlike);
  }
  FOREBAY_RETURN_IF_ERROR(PlanRun(stop, observer, environment, run));
  FOREBAY_ASSIGN_OR_RETURN(run.data, OpenData(run.options.data, run, observer, stop));
  if (!run.options.eval_data.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(run.eval_data, OpenData(run.options.eval_data, run, observer, stop));
  }
  if (stop()) return InterruptedError("stopped on request");
  FOREBAY_RETURN_IF_ERROR(CountSteps(run));
  if (!run.options.trace.empty()) {
    FOREBAY_RETURN_IF_ERROR(CheckTraceFile(run.options));
    const int64_t done = run.resumed                  ? run.store->committed().step
                         : source->copied.has_value() ? source->copied->state->step()
                                                      : 0;
    FOREBAY_ASSIGN_OR_RETURN(run.traced, TracedSteps(run.options, done + 1, run.num_steps));
  }
  FOREBAY_ASSIGN_OR_RETURN(run.lr_schedule, MakeLrSchedule(run.options, run.num_steps));
  FOREBAY_RETURN_IF_ERROR(CheckTokenizerIsTheRuns(run));
  const bool copies = source->copied.has_value();
  FOREBAY_ASSIGN_OR_RETURN(const std::string model_digest,
                           run.resumed ? ModelDigestToResume(run_json, resolved)
                           : copies    ? ModelDigestToResume(source->copied->run_json, resolved)
                                       : SampleDigest(run.options.model));
  Json fingerprint =
      MakeFingerprint(resolved.options, run.num_steps, run.data->info(), model_digest);
  if (copies) {
    const Json& of_state = source->copied->run_json["fingerprint"];
    FOREBAY_RETURN_IF_ERROR(CompareFingerprints(of_state, fingerprint));
    fingerprint = of_state;
  }
  run.fingerprint_digest = FingerprintDigest(fingerprint);
  FOREBAY_RETURN_IF_ERROR(MakeBudget(run));
  if (!run.resumed) FOREBAY_RETURN_IF_ERROR(CheckWriteLimit(run));
  FOREBAY_RETURN_IF_ERROR(AgreeOnSettings(run, fingerprint));
  FOREBAY_RETURN_IF_ERROR(
      run.resumed ? ContinueRun(resolved, fingerprint, source->files, std::move(run_json), run)
                  : CreateRun(resolved, fingerprint, source, stop, observer, run));
  if (run.ranks != nullptr) FOREBAY_RETURN_IF_ERROR(run.ranks->Barrier());
  return run;
}

}  // namespace

absl::StatusOr<PreparedRun> PrepareRun(const ResolvedOptions& resolved,
                                       const std::function<bool()>& stop, TrainObserver& observer,
                                       const TrainEnvironment& environment) {
  absl::StatusOr<PreparedRun> run = Prepare(resolved, stop, observer, environment);
  if (IsOutOfSpace(run.status())) {
    return DoesNotFitError(fmt::format(
        "{}. Nothing was trained; free some space there and start the same command again",
        MessageOf(run.status())));
  }
  if (ExitCodeOf(run.status()) != ExitCode::kInterrupted) return run;
  return InterruptedError(
      fmt::format("stopped on request before the first step: {}. Start the same command again",
                  resolved.options.resume ? "the run is as it was" : "nothing was begun"));
}

}  // namespace forebay
