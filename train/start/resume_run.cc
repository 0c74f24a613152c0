#include "forebay/train/start/resume_run.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/collective/gather_values.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/fingerprint.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/run_files.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_lock.h"
#include "forebay/train/files/store_owner.h"
#include "forebay/train/files/swap_area.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/plan/stripe_weights.h"
#include "forebay/train/start/agree_on_run.h"

namespace forebay {
namespace {

// The tiles of a store are made once; a command that asks for others would not get them.
absl::Status CheckTilesAreTheRuns(const ResolvedOptions& resolved, const TensorStore& store) {
  const Json& entry = resolved.resolved[FindOption("tile_elems")->section]["tile_elems"];
  const int64_t tile_elems = store.tiles().tile_elems();
  if (entry["origin"] == "default" || resolved.options.tile_elems == tile_elems) {
    return absl::OkStatus();
  }
  return UsageError(
      fmt::format("--set=tile_elems={}: the run has tiles of {}, which are made once. Leave "
                  "--set=tile_elems out",
                  resolved.options.tile_elems, tile_elems));
}

// So is what is kept of a parameter. Matters for runs without a fingerprint (forebay init --run).
absl::Status CheckStateIsTheRuns(const TrainOptions& options, const TensorStore& store) {
  const TileMap& tiles = store.tiles();
  if (tiles.layout() != options.layout) {
    return UsageError(fmt::format(
        "--resume: the state of the run has layout {0}, this command would train with {1}. Give "
        "--precision={2} --layout={0}",
        NameOf(tiles.layout()), NameOf(options.layout), NameOf(WeightDType(tiles.layout()))));
  }
  if (tiles.moment_set() != MomentsOf(RuleOf(options))) {
    return UsageError(fmt::format(
        "--resume: the state of the run is not that of --optimizer={}, which has other moments. A "
        "run made by 'forebay init --run' has those of adamw",
        NameOf(options.optimizer)));
  }
  return absl::OkStatus();
}

// So are the shares of its folders.
absl::Status CheckWeightsAreTheRuns(const TrainOptions& options, const TensorStore& store) {
  const StripeWeights& weights = store.tiles().stripe_weights();
  if (options.nvme_weights.empty() || WeightsInProportion(options.nvme_weights) == weights) {
    return absl::OkStatus();
  }
  return UsageError(fmt::format(
      "--set=nvme_weights={}: the folders of the run have the shares {}, which are fixed when it "
      "starts. Leave --set=nvme_weights out",
      OptionText(options, "nvme_weights"), fmt::join(weights, ",")));
}

// So is how many copies there are.
absl::Status CheckDurabilityIsTheRuns(const TrainOptions& options, const TensorStore& store) {
  const bool one_copy = store.num_slots() == 1;
  const bool asks_for_one = options.durability == Durability::kNone;
  if (options.durability != Durability::kAuto && asks_for_one != one_copy) {
    return UsageError(fmt::format(
        "--durability={}: the run keeps {}, which is fixed when it starts. Leave --durability out",
        OptionText(options, "durability"),
        one_copy ? "one copy of its state (none)" : "two copies of its state (step)"));
  }
  if (one_copy && options.commit_every > 0) {
    return UsageError(fmt::format(
        "--commit_every={}: the run keeps one copy of its state (--durability=none), which is "
        "committed when it stops, evaluates or exports. Leave --commit_every out",
        options.commit_every));
  }
  return absl::OkStatus();
}

// Whether this command says it, and not the run's own settings.
bool IsSaidNow(const ResolvedOptions& resolved, const char* option) {
  const Json& entry = resolved.resolved[FindOption(option)->section][option];
  return !entry["origin"].get<std::string>().starts_with("run ");
}

// Where the store of the run is that goes on: where run.json has it, but for what this command says
// about it.
absl::StatusOr<std::vector<std::string>> StoreToResume(const ResolvedOptions& resolved) {
  const TrainOptions& options = resolved.options;
  if (IsSaidNow(resolved, "nvme") && !options.nvme.empty())
    return FindStoreDirectories(options.out, options.nvme);
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> directories, StoreDirectoriesOf(options.out));
  for (const std::string& directory : directories) {
    // A folder that --nvme names may be reached through links; the run's own is none.
    if (!IsInside(options.out, directory)) continue;
    if (std::error_code error; !std::filesystem::is_symlink(directory, error)) continue;
    return UsageError(fmt::format(
        "--resume: '{}', the swap area of the run, is a symbolic link now. Put the folder back, "
        "or say where it is with --nvme",
        directory));
  }
  return directories;
}

// And so is how ranks divide the state.
absl::Status CheckPartIsTheRuns(const Json& run_json, const TrainOptions& options) {
  const RankPart is = PartOf(run_json), asked = PartOf(options);
  if (is == asked) return absl::OkStatus();
  if (is.of == asked.of) {
    return UsageError(fmt::format(
        "--resume: '{}' has part {} of {} of the run's state, and part {} is to be there. Put the "
        "folders of the ranks in their places: OUT has part 0, OUT/rank-001 part 1, and so on",
        options.out, is.number, is.of, asked.number));
  }
  const auto text = [](const RankPart& part) {
    return part.of == 1 ? std::string("whole, in each rank's folder")
                        : fmt::format("divided among {} ranks", part.of);
  };
  return UsageError(
      fmt::format("--resume: the state of the run in '{0}' is {1}{2}, and this command would have "
                  "it {3}. Go on "
                  "with {4}, or begin a run --from={0} with another --out",
                  FolderOfAllRanks(options.out, is.number), text(is),
                  is.of == 1 ? "" : fmt::format(" (here is part {})", is.number), text(asked),
                  is.of == 1 ? std::string("--zero_stage=0")
                             : fmt::format("{} ranks and --zero_stage=1, 2 or 3", is.of)));
}

// The lock of the run that goes on, and its run.json as it is from then on.
absl::StatusOr<Json> TakeRun(TrainObserver& observer, PreparedRun& run) {
  const std::string& out = run.options.out;
  if (!IsRunFolder(out)) {
    return UsageError(fmt::format(
        "--resume: '{}' holds no run. Check --out, or leave out --resume to start one", out));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Json found, ReadRunJson(out));
  FOREBAY_RETURN_IF_ERROR(Annotate(CheckIsKept(out, found), "--resume"));
  std::string note;
  FOREBAY_ASSIGN_OR_RETURN(run.lock, TakeRunLock(out, &note));
  if (!note.empty()) observer.OnNote(std::exchange(note, ""));
  FOREBAY_ASSIGN_OR_RETURN(Json json, ReadRunJson(out, &note));
  if (!note.empty()) observer.OnNote(note);
  // A start of several ranks may have ended between the first of them that was ready and the last.
  FOREBAY_ASSIGN_OR_RETURN(const bool is_ready, AnyRank(run.ranks, json["state"] == kRunReady));
  json["state"] = kRunReady;
  FOREBAY_RETURN_IF_ERROR(CheckPartIsTheRuns(json, run.options));
  if (is_ready) return json;
  return UsageError(
      fmt::format("--resume: the run in '{}' was stopped before its first commit; there is "
                  "nothing to resume. "
                  "Start it again without --resume",
                  out));
}

// A run that has its own copies of the model's files needs no --model.
absl::Status OrWithoutModel(const absl::Status& status) {
  if (status.ok()) return status;
  return Annotate(status,
                  "the folder of --model cannot be compared with the run's (name another, "
                  "or leave --model out)");
}

// Compares --model of this command with the run's own copies of the model's files.
absl::Status CompareModel(const Json& run_json, const ResolvedOptions& resolved,
                          TrainObserver& observer, const PreparedRun& run) {
  if (!IsSaidNow(resolved, "model")) return absl::OkStatus();
  const std::string& model = resolved.options.model;
  const absl::StatusOr<std::vector<std::string>> different = CompareModelFiles(model, run.files);
  // Where it began it need not be there any more.
  const bool is_the_first = NormalPath(ModelOf(run.options.out, run_json)) == NormalPath(model);
  if (!different.ok() && ExitCodeOf(different.status()) != ExitCode::kUsage && is_the_first) {
    observer.OnNote(fmt::format("--model: {}. The run goes on with its own copies in '{}'",
                                MessageOf(different.status()), run.paths.files));
    return absl::OkStatus();
  }
  if (ExitCodeOf(different.status()) == ExitCode::kUsage) return different.status();
  FOREBAY_RETURN_IF_ERROR(OrWithoutModel(different.status()));
  if (!different->empty()) {
    observer.OnNote(fmt::format(
        "--model: {} there {} not what the run began with, and not used: the run has its own "
        "copies in '{}'",
        QuotedList(*different), different->size() == 1 ? "is" : "are", run.paths.files));
  }
  return absl::OkStatus();
}

// The run's own copies of its model's files, once they are what they were. One that has none takes
// them in ContinueRun.
absl::Status TakeRunFiles(const Json& run_json, const ResolvedOptions& resolved,
                          TrainObserver& observer, PreparedRun& run) {
  run.files = RunFilesOf(run_json);
  if (run.files.empty()) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(CompareModel(run_json, resolved, observer, run));
  const std::string model =
      IsSaidNow(resolved, "model") ? resolved.options.model : ModelOf(run.options.out, run_json);
  const bool dry_run = run.options.dry_run;
  FOREBAY_ASSIGN_OR_RETURN(const RestoredFiles restored,
                           RestoreRunFiles(run.paths.files, run.files, model, dry_run));
  for (const std::string& path : restored.written) {
    observer.OnNote(fmt::format("'{}' was not what it was any more, and {} anew from '{}'", path,
                                dry_run ? "would be written" : "is written", model));
  }
  for (const std::string& line : restored.lost) observer.OnWarning(line);
  run.model_directory = dry_run && !restored.written.empty() ? model : run.paths.files;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> OpenRunToResume(const ResolvedOptions& resolved, TrainObserver& observer,
                                     const TrainEnvironment& environment, PreparedRun& run) {
  FOREBAY_ASSIGN_OR_RETURN(Json json, TakeRun(observer, run));
  const std::string& out = run.options.out;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> directories, StoreToResume(resolved));
  for (const std::string& directory : directories) {
    FOREBAY_RETURN_IF_ERROR(CheckIsNotOfAnother(directory, out, StoreUuidOf(json)));
  }
  FOREBAY_RETURN_IF_ERROR(OpenEngineFor(directories, observer, environment, run));
  FOREBAY_ASSIGN_OR_RETURN(
      run.store, OpenRunStore(out, directories, run.engine.get(), StoreAccess::kReadWrite));
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*run.store));
  FOREBAY_RETURN_IF_ERROR(AgreeOnCommit(run, observer));
  FOREBAY_RETURN_IF_ERROR(CheckTilesAreTheRuns(resolved, *run.store));
  FOREBAY_RETURN_IF_ERROR(CheckWeightsAreTheRuns(resolved.options, *run.store));
  FOREBAY_RETURN_IF_ERROR(CheckDurabilityIsTheRuns(resolved.options, *run.store));
  FOREBAY_RETURN_IF_ERROR(CheckIsOfCommit(json, run.paths.run_json, run.store->committed()));
  FOREBAY_RETURN_IF_ERROR(TakeRunFiles(json, resolved, observer, run));
  run.options.tile_elems = run.store->tiles().tile_elems();
  if (run.options.durability == Durability::kAuto) {
    run.options.durability = run.store->num_slots() > 1 ? Durability::kStep : Durability::kNone;
  }
  run.resumed = true;
  return json;
}

absl::StatusOr<std::string> ModelDigestToResume(const Json& run_json,
                                                const ResolvedOptions& resolved) {
  const std::string& model = resolved.options.model;
  const bool is_known = run_json.contains("fingerprint") && run_json["fingerprint"].is_object();
  const bool is_compared = !is_known || (IsSaidNow(resolved, "model") && HasWeights(model));
  if (is_compared) {
    absl::StatusOr<std::string> sample = SampleDigest(model);
    if (sample.ok() || !is_known) return sample;
    return OrWithoutModel(sample.status());
  }
  const Json digest = run_json["fingerprint"].value("model", Json());
  return digest.is_string() ? digest.get<std::string>() : "";
}

absl::Status ContinueRun(const ResolvedOptions& resolved, const Json& fingerprint,
                         const std::vector<ModelFile>& files, Json run_json, PreparedRun& run) {
  const bool known = run_json.contains("fingerprint") && run_json["fingerprint"].is_object();
  if (known) {
    FOREBAY_RETURN_IF_ERROR(CompareFingerprints(run_json["fingerprint"], fingerprint));
    // That of the file is what the next resume compares the commits with; an option that came
    // later is not in it.
    run.fingerprint_digest = FingerprintDigest(run_json["fingerprint"]);
  }
  FOREBAY_RETURN_IF_ERROR(CheckStateIsTheRuns(run.options, *run.store));
  FOREBAY_RETURN_IF_ERROR(Annotate(
      run.options.dry_run ? run.store->CheckSpace() : run.store->ReserveSpace(), "--resume"));
  // With less memory than the run was started with, gradients may have to wait on disk, and
  // --set=activations_tier may be another.
  const StripeBytes area_bytes = run.plan.ScratchBytes();
  const absl::Status room = run.options.dry_run ? run.store->CheckScratchArea(area_bytes)
                                                : run.store->EnsureScratchArea(area_bytes);
  FOREBAY_RETURN_IF_ERROR(Annotate(room, "--resume"));
  if (run.options.dry_run) return absl::OkStatus();
  // A run made by `forebay init --run` gets its fingerprint and its files from its first training
  // session, and one that was moved is found again without being told. Lost copies are made anew.
  if (!known) run_json["fingerprint"] = fingerprint;
  run_json["stores"] = RecordedStoreDirectories(run.options.out, run.store->directories());
  run_json["files"] = ToJson(run.files);
  if (!files.empty()) FOREBAY_RETURN_IF_ERROR(WriteRunFiles(run.paths.files, files));
  FOREBAY_RETURN_IF_ERROR(WriteRunJson(run.paths, run_json));
  run.model_directory = run.paths.files;
  const std::string uuid = StoreUuidOf(run_json);
  for (const std::string& directory : run.store->directories()) {
    if (IsOwner(directory, run.options.out, uuid)) continue;
    FOREBAY_RETURN_IF_ERROR(WriteOwner(directory, run.options.out, uuid));
  }
  return WriteRecords(run, resolved);
}

}  // namespace forebay
