#include "forebay/train/resume_run.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/train/fingerprint.h"
#include "forebay/train/option_table.h"
#include "forebay/train/run_folder.h"
#include "forebay/train/stripe_weights.h"
#include "forebay/train/swap_area.h"

namespace forebay {
namespace {

// The tiles of a store are made once; a command that asks for others would not get them.
absl::Status CheckTilesAreTheRuns(const ResolvedOptions& resolved, const TensorStore& store) {
  const Json& entry = resolved.resolved[FindOption("tile_elems")->section]["tile_elems"];
  const int64_t tile_elems = store.tiles().tile_elems();
  if (entry["origin"] == "default" || resolved.options.tile_elems == tile_elems) {
    return absl::OkStatus();
  }
  return UsageError(fmt::format(
      "--tile_elems={}: the run has tiles of {}, which are made once. Leave --tile_elems out",
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
      "--nvme_weights={}: the folders of the run have the shares {}, which are fixed when it "
      "starts. Leave --nvme_weights out",
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
        one_copy ? "one copy of its state (none)" : "two copies of its state (step, replay)"));
  }
  if (one_copy && options.commit_every > 0) {
    return UsageError(fmt::format(
        "--commit_every={}: the run keeps one copy of its state (--durability=none), which is "
        "committed when it stops, evaluates or exports. Leave --commit_every out",
        options.commit_every));
  }
  return absl::OkStatus();
}

// Where the store of the run is that goes on: where run.json has it, but for what this command says
// about it.
absl::StatusOr<std::vector<std::string>> StoreToResume(const ResolvedOptions& resolved) {
  const TrainOptions& options = resolved.options;
  const Json& entry = resolved.resolved[FindOption("nvme")->section]["nvme"];
  const bool is_said_now = !entry["origin"].get<std::string>().starts_with("run ");
  if (is_said_now && !options.nvme.empty()) return FindStoreDirectories(options.out, options.nvme);
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

}  // namespace

absl::StatusOr<Json> OpenRunToResume(const ResolvedOptions& resolved, TrainObserver& observer,
                                     const TrainEnvironment& environment, PreparedRun& run) {
  const std::string& out = run.options.out;
  if (!IsRunFolder(out)) {
    return UsageError(fmt::format(
        "--resume: '{}' holds no run. Check --out, or leave out --resume to start one", out));
  }
  FOREBAY_ASSIGN_OR_RETURN(Json json, ReadRunJson(out));
  if (json.value("state", "") == "creating") {
    return UsageError(
        fmt::format("--resume: the run in '{}' was stopped before its first commit; there is "
                    "nothing to resume. "
                    "Start it again without --resume",
                    out));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> directories, StoreToResume(resolved));
  FOREBAY_RETURN_IF_ERROR(OpenEngineFor(directories, observer, environment, run));
  FOREBAY_ASSIGN_OR_RETURN(
      run.store, OpenRunStore(out, directories, run.engine.get(), StoreAccess::kReadWrite));
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*run.store));
  FOREBAY_RETURN_IF_ERROR(CheckTilesAreTheRuns(resolved, *run.store));
  FOREBAY_RETURN_IF_ERROR(CheckWeightsAreTheRuns(resolved.options, *run.store));
  FOREBAY_RETURN_IF_ERROR(CheckDurabilityIsTheRuns(resolved.options, *run.store));
  run.options.tile_elems = run.store->tiles().tile_elems();
  if (run.options.durability == Durability::kAuto) {
    run.options.durability = run.store->num_slots() > 1 ? Durability::kStep : Durability::kNone;
  }
  run.resumed = true;
  return json;
}

absl::Status ContinueRun(const ResolvedOptions& resolved, const Json& fingerprint, Json run_json,
                         PreparedRun& run) {
  const bool known = run_json.contains("fingerprint") && run_json["fingerprint"].is_object();
  if (known) {
    FOREBAY_RETURN_IF_ERROR(CompareFingerprints(run_json["fingerprint"], fingerprint));
    // That of the file is what the next resume compares the commits with; an option that came
    // later is not in it.
    run.fingerprint_digest = FingerprintDigest(run_json["fingerprint"]);
  }
  const Json& committed = run.store->committed().trainer;
  if (known && committed.contains("settings") &&
      committed["settings"] != FingerprintDigest(run_json["fingerprint"])) {
    return CorruptError(
        fmt::format("'{}' has other settings than the steps in the run's store were made with. Put "
                    "back the file that belongs to it",
                    run.paths.run_json));
  }
  FOREBAY_RETURN_IF_ERROR(CheckStateIsTheRuns(run.options, *run.store));
  FOREBAY_RETURN_IF_ERROR(Annotate(
      run.options.dry_run ? run.store->CheckSpace() : run.store->ReserveSpace(), "--resume"));
  // With less memory than the run was started with, gradients may have to wait on disk; with
  // --durability=replay, which may be new, all of them are kept there.
  const StripeBytes& area_bytes = run.plan.gradient_area_bytes;
  const GradientArea area = run.plan.gradient_area;
  const absl::Status room = run.options.dry_run ? run.store->CheckGradientArea(area_bytes, area)
                                                : run.store->EnsureGradientArea(area_bytes, area);
  FOREBAY_RETURN_IF_ERROR(Annotate(room, "--resume"));
  if (run.options.dry_run) return absl::OkStatus();
  // A run made by `forebay init --run` gets its fingerprint from its first training session, and
  // one that was moved is found again without being told.
  const Json stores = RecordedStoreDirectories(run.options.out, run.store->directories());
  if (!known || run_json["stores"] != stores) {
    run_json["fingerprint"] = fingerprint;
    run_json["stores"] = stores;
    FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(run.paths.run_json, run_json.dump(2) + "\n"));
  }
  return WriteRecords(run, resolved);
}

}  // namespace forebay
