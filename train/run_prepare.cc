#include "forebay/train/run_prepare.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/output_folder.h"
#include "forebay/data/sampler.h"
#include "forebay/model/model_folder.h"
#include "forebay/model/safetensors.h"
#include "forebay/swap/store_folders.h"
#include "forebay/swap/store_manifest.h"
#include "forebay/train/create_store.h"
#include "forebay/train/disk_profile.h"
#include "forebay/train/export_weights.h"
#include "forebay/train/fingerprint.h"
#include "forebay/train/lr_schedule_table.h"
#include "forebay/train/option_table.h"
#include "forebay/train/pack_cache.h"
#include "forebay/train/stripe_weights.h"

namespace forebay {
namespace {

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  return error ? path : absolute;
}

absl::StatusOr<std::unique_ptr<PackedFile>> OpenData(const std::string& data,
                                                     const TrainOptions& options,
                                                     const DecoderConfig& config,
                                                     const std::function<bool()>& stop) {
  PackRequest request;
  request.data = data;
  request.model = options.model;
  request.seq = options.seq;
  request.truncate = options.truncate;
  FOREBAY_ASSIGN_OR_RETURN(const PackResult packed, PackedInCache(std::move(request), stop));
  const std::string& path = packed.path;
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<PackedFile> file, PackedFile::Open(path));
  const PackedFileInfo& info = file->info();
  if (info.seq != options.seq) {
    return BadInputError(fmt::format(
        "'{}' is packed in rows of {} tokens, but --seq is {}. Use --seq={} or pack it again", path,
        info.seq, options.seq, info.seq));
  }
  if (info.vocab_size > config.vocab_size) {
    return BadInputError(
        fmt::format("'{}' was packed for a vocabulary of {} tokens; the model has {}", path,
                    info.vocab_size, config.vocab_size));
  }
  if (info.num_trained == 0) {
    return BadInputError(fmt::format("'{}' has no token that would be trained", data));
  }
  return file;
}

absl::StatusOr<int64_t> NumSteps(const TrainOptions& options, const PackedFileInfo& data) {
  if (options.steps > 0) return options.steps;
  const int64_t per_epoch =
      Sampler(data.num_rows, options.seed).StepsPerEpoch(options.batch * options.accum);
  const double steps = std::ceil(options.epochs * static_cast<double>(per_epoch));
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

// Of the folders that runs make in those of --nvme.
constexpr std::string_view kStorePrefix = "forebay-";
constexpr size_t kStoreHashDigits = 8;

// Where the store of a new run goes: OUT/swap, or a folder of its own inside each --nvme.
std::vector<std::string> NewStoreDirectories(const TrainOptions& options) {
  const std::string inside = JoinPath(options.out, "swap");
  if (options.nvme.empty()) return {inside};
  const std::string out = AbsolutePath(options.out);
  Xxh3_128 hash;
  hash.Update(out);
  const std::string name =
      fmt::format("{}{}-{}", kStorePrefix, std::filesystem::path(out).filename().string(),
                  hash.Hex().substr(0, kStoreHashDigits));
  std::vector<std::string> directories;
  for (const std::string& nvme : options.nvme) {
    directories.push_back(nvme == inside ? inside : JoinPath(AbsolutePath(nvme), name));
  }
  return directories;
}

// Without links, however it was spelled; parts of it may not be there yet.
std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(AbsolutePath(path), error);
  return error ? AbsolutePath(path) : canonical.string();
}

// `path` as seen from `folder`; "" when it does not lie inside. Both are absolute and normal.
std::string PathInside(const std::string& folder, const std::string& path) {
  const std::string prefix = JoinPath(folder, "");
  return path.starts_with(prefix) ? path.substr(prefix.size()) : "";
}

// As run.json records them: relative when they lie inside the run, so that the run can be moved.
// That is so when their name does, wherever a link in it leads to, and when they do by another
// name.
Json RecordedStoreDirectories(const std::string& out, const std::vector<std::string>& directories) {
  Json recorded = Json::array();
  for (const std::string& directory : directories) {
    std::string inside = PathInside(AbsolutePath(out), AbsolutePath(directory));
    if (inside.empty()) inside = PathInside(CanonicalPath(out), CanonicalPath(directory));
    recorded.push_back(inside.empty() ? AbsolutePath(directory) : inside);
  }
  return recorded;
}

absl::Status WriteRunJson(const PreparedRun& run, std::string_view state, const StoreUuid& uuid,
                          const Json& fingerprint) {
  const Json stores = RecordedStoreDirectories(run.options.out, NewStoreDirectories(run.options));
  const Json json = {{"format", kRunFormat},
                     {"state", state},
                     {"stores", stores},
                     {"store_uuid", ToHex(uuid)},
                     {"model", AbsolutePath(run.options.model)},
                     {"fingerprint", fingerprint}};
  return WriteFileAtomically(run.paths.run_json, json.dump(2) + "\n");
}

// The store of a start in --out that never reached its first commit, whose remains may be replaced;
// no folder when there is none. UsageError when --out holds a whole run.
absl::StatusOr<std::vector<std::string>> StoreOfUnfinishedStart(const std::string& out) {
  if (!IsRunFolder(out)) return std::vector<std::string>();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(out));
  if (json["state"] == "creating") return StoreDirectoriesOf(out);
  return UsageError(fmt::format(
      "--out '{}' holds another run. Continue it with --resume, or choose another folder", out));
}

absl::Status CheckOutIsEmpty(const std::string& out) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(out));
  for (const std::string& name : names) {
    // A start that was killed while it wrote its first file leaves this behind.
    if (name == "run.json.tmp") continue;
    return UsageError(fmt::format(
        "--out '{}' is not empty. Choose a new or empty folder; nothing was changed", out));
  }
  return absl::OkStatus();
}

absl::Status CheckStoreFolderIsFree(const std::string& store) {
  std::error_code error;
  const bool is_link = std::filesystem::is_symlink(store, error);
  if (!is_link) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(store));
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(store));
    if (!is_there || (IsDirectory(store) && names.empty())) return absl::OkStatus();
  }
  return UsageError(fmt::format(
      "the swap area of this run would be '{}', which holds something already: perhaps that of a "
      "run with the same --out, whose folder was removed since. Remove it if nothing of it is "
      "needed, or choose another --out or --nvme",
      store));
}

// What a new run may put its files into: an --out that is new, empty, or holds an unfinished start,
// and folders for the store that are new or empty. UsageError otherwise; StorageError where nothing
// can be written. Changes nothing.
absl::Status CheckFoldersAreFree(const TrainOptions& options) {
  const std::string& out = options.out;
  const std::vector<std::string> stores = NewStoreDirectories(options);
  if (FileExists(out) && !IsDirectory(out))
    return UsageError(fmt::format("--out '{}' is not a folder", out));
  FOREBAY_RETURN_IF_ERROR(Annotate(CheckWritable(out), "--out"));
  for (const std::string& store : stores) {
    FOREBAY_RETURN_IF_ERROR(
        Annotate(CheckWritable(store), options.nvme.empty() ? "--out" : "--nvme"));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> unfinished, StoreOfUnfinishedStart(out));
  if (unfinished.empty()) FOREBAY_RETURN_IF_ERROR(CheckOutIsEmpty(out));
  for (const std::string& store : stores) {
    std::error_code error;
    const bool is_ours = std::ranges::count(unfinished, CanonicalPath(store), CanonicalPath) > 0;
    if (is_ours && !std::filesystem::is_symlink(store, error)) continue;
    FOREBAY_RETURN_IF_ERROR(CheckStoreFolderIsFree(store));
  }
  return absl::OkStatus();
}

// Takes the folders of a new run. Once run.json says "creating", what lies in the store's folder is
// ours to remove; before that it is not.
absl::Status ClaimFolders(const PreparedRun& run) {
  const std::string& out = run.options.out;
  FOREBAY_RETURN_IF_ERROR(CheckFoldersAreFree(run.options));
  FOREBAY_RETURN_IF_ERROR(MakeDirectories(out));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> unfinished, StoreOfUnfinishedStart(out));
  if (unfinished.empty()) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(out));
  return RemoveParts(unfinished, StoreUuidOf(json)).status();
}

// Whether a run made a folder of this name in one of --nvme.
bool IsOfARun(std::string_view name) {
  if (!name.starts_with(kStorePrefix) || name.size() < kStorePrefix.size() + kStoreHashDigits) {
    return false;
  }
  return name.substr(name.size() - kStoreHashDigits).find_first_not_of("0123456789abcdef") ==
         std::string_view::npos;
}

// What --nvme has to name for a new run in the same places as a store in `directories`: the folders
// that those lie in, but for one that has another name than a run gives, or shares its place.
std::vector<std::string> FoldersToName(const std::vector<std::string>& directories) {
  std::vector<std::string> folders;
  for (const std::string& directory : directories) {
    const std::filesystem::path path = AbsolutePath(directory);
    const std::string parent = path.parent_path();
    const bool is_free = std::ranges::count(folders, parent) == 0;
    folders.push_back(is_free && IsOfARun(path.filename().string()) ? parent : path.string());
  }
  return folders;
}

// resolved_config.json is what a later --resume reads, perhaps from another folder.
absl::Status WriteRecords(const PreparedRun& run, const ResolvedOptions& resolved) {
  Json config = resolved.resolved;
  for (const char* const name : {"model", "data", "eval_data", "nvme"}) {
    Json& value = config[FindOption(name)->section][name]["value"];
    const auto make_absolute = [](Json& path) {
      const auto& text = path.get_ref<const std::string&>();
      if (!text.empty()) path = AbsolutePath(text);
    };
    if (value.is_string()) make_absolute(value);
    if (value.is_array()) std::ranges::for_each(value, make_absolute);
  }
  // On --resume the command may have named but some of the folders, and in any order.
  Json& nvme = config[FindOption("nvme")->section]["nvme"];
  const bool names_some = run.resumed && !run.options.nvme.empty() &&
                          !nvme["origin"].get<std::string>().starts_with("run ");
  if (names_some) nvme["value"] = FoldersToName(run.store->directories());
  config[FindOption("tile_elems")->section]["tile_elems"]["value"] = run.options.tile_elems;
  FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(run.paths.resolved_config, config.dump(2) + "\n"));
  return WriteFileAtomically(run.paths.plan, ToJson(run.plan).dump(2) + "\n");
}

// Of the file systems that the folders are on.
int NumDisks(const std::vector<std::string>& directories) {
  TrainOptions options;
  options.nvme = directories;
  return static_cast<int>(ByFileSystem(AskMachine(options).disks).size());
}

// The engine for the store in `directories`, which need not exist yet.
absl::Status OpenEngineFor(const std::vector<std::string>& directories, TrainObserver& observer,
                           const TrainEnvironment& environment, PreparedRun& run) {
  EngineOptions options;
  options.engine = run.options.engine;
  options.strict = run.options.engine_strict;
  run.num_disks = NumDisks(directories);
  options.num_threads = run.options.io_threads * run.num_disks;
  options.report = [&observer](const std::string& line) { observer.OnWarning(line); };
  FOREBAY_ASSIGN_OR_RETURN(DiskProfile profile, ReadDiskProfile(run.options.bench, directories));
  FOREBAY_ASSIGN_OR_RETURN(
      OpenedEngine opened,
      OpenProfiledEngine(options, directories, environment.open_engine, profile));
  if (!profile.warning.empty()) observer.OnWarning(profile.warning);
  run.engine = std::move(opened.engine);
  run.engine_line = std::move(opened.line);
  return absl::OkStatus();
}

// The weights that a new run starts from: the tensors of the inventory in the model's files.
struct ModelSource {
  Inventory inventory;
  std::unique_ptr<CheckpointReader> reader;
  std::vector<const CheckpointReader::Tensor*> tensors;  // in the order of the inventory
};

absl::StatusOr<ModelSource> OpenModel(const PreparedRun& run) {
  ModelSource source;
  source.inventory = BuildInventory(run.config);
  FOREBAY_ASSIGN_OR_RETURN(source.reader, CheckpointReader::Open(run.options.model));
  FOREBAY_ASSIGN_OR_RETURN(source.tensors,
                           MatchCheckpoint(*source.reader, run.config, source.inventory));
  return source;
}

// All of `values` from the model's files, in pieces between which `stop` is heard.
absl::Status ReadTensor(const CheckpointReader& reader, const CheckpointReader::Tensor& tensor,
                        const std::function<bool()>& stop, std::span<float> values) {
  constexpr size_t kPieceElems = size_t{1} << 24;
  for (size_t first = 0; first < values.size(); first += kPieceElems) {
    if (stop()) return InterruptedError("stopped on request");
    const auto piece = values.subspan(first, std::min(kPieceElems, values.size() - first));
    FOREBAY_RETURN_IF_ERROR(reader.ReadF32(tensor, static_cast<int64_t>(first), piece));
  }
  return absl::OkStatus();
}

absl::Status CreateRun(const ResolvedOptions& resolved, const Json& fingerprint,
                       const ModelSource& source, const std::function<bool()>& stop,
                       TrainObserver& observer, PreparedRun& run) {
  if (run.options.dry_run) return absl::OkStatus();
  for (const std::string& nvme : run.options.nvme) {
    // A disk that is not mounted, or a slip of the hand, would go unnoticed.
    if (!IsDirectory(nvme)) {
      observer.OnNote(fmt::format("--nvme: '{}' was not there and is made", nvme));
    }
  }
  FOREBAY_RETURN_IF_ERROR(ClaimFolders(run));
  StoreOptions store;
  FOREBAY_ASSIGN_OR_RETURN(store.uuid, NewStoreUuid());
  FOREBAY_RETURN_IF_ERROR(WriteRunJson(run, "creating", *store.uuid, fingerprint));
  FOREBAY_RETURN_IF_ERROR(WriteRecords(run, resolved));
  store.directories = NewStoreDirectories(run.options);
  store.stripe_weights = run.plan.tiles.stripe_weights();
  store.layout = run.options.layout;
  store.tile_elems = run.options.tile_elems;
  store.num_slots = run.plan.num_slots;
  store.gradient_area_bytes = run.plan.gradient_area_bytes;
  store.has_intents = run.plan.gradient_area == GradientArea::kAll;
  int64_t done_elems = 0;
  const TensorFiller fill = [&](const TensorSpec& tensor, std::span<float> values) {
    // The store has its own copy of the inventory; names identify tensors in both.
    const int64_t position = source.inventory.Find(tensor.name) - source.inventory.tensors().data();
    done_elems += tensor.num_elems;
    observer.OnPhase("importing the model", static_cast<double>(done_elems) /
                                                static_cast<double>(source.inventory.num_params()));
    return ReadTensor(*source.reader, *source.tensors[position], stop, values);
  };
  CommitInfo first;
  first.trainer = {{"num_steps", run.num_steps}};
  FOREBAY_ASSIGN_OR_RETURN(run.store, CreateFilledStore(store, source.inventory, fill, first,
                                                        run.engine.get(), run.budget.get(), stop));
  return WriteRunJson(run, "ready", *store.uuid, fingerprint);
}

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
    if (PathInside(AbsolutePath(options.out), AbsolutePath(directory)).empty()) continue;
    if (std::error_code error; !std::filesystem::is_symlink(directory, error)) continue;
    return UsageError(fmt::format(
        "--resume: '{}', the swap area of the run, is a symbolic link now. Put the folder back, "
        "or say where it is with --nvme",
        directory));
  }
  return directories;
}

// Opens the run that --resume means. Its store's tiles are what they are, whatever the options say.
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
  FOREBAY_ASSIGN_OR_RETURN(run.store, OpenRunStore(out, directories, run.engine.get()));
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
  if (run.store->tiles().layout() != run.options.layout) {
    const std::string_view layout = NameOf(run.store->tiles().layout());
    return UsageError(
        fmt::format("--resume: the state of the run has layout {}, this command would train with "
                    "{}. Give --precision={}",
                    layout, NameOf(run.options.layout), layout));
  }
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

// The folders of the swap area as a plan sees them.
absl::StatusOr<MachineLimits> AskLimits(const PreparedRun& run, DiskProfile& profile) {
  TrainOptions options = run.options;
  if (run.resumed) options.nvme = run.store->directories();
  MachineLimits limits = AskMachine(options);
  FOREBAY_ASSIGN_OR_RETURN(profile, ReadDiskProfile(options.bench, SwapFoldersOf(options)));
  AddRates(profile, limits);
  return limits;
}

// The plan, and for a new run the engine and the shares of its folders. Trying an engine, or the
// speed of a disk, writes a small file: only when the plan has found room, in whatever shares.
absl::Status PlanRun(const std::function<bool()>& stop, TrainObserver& observer,
                     const TrainEnvironment& environment, PreparedRun& run) {
  DiskProfile profile;
  FOREBAY_ASSIGN_OR_RETURN(MachineLimits limits, AskLimits(run, profile));
  StripeShares shares =
      run.resumed ? StripeShares{run.store->tiles().stripe_weights(), "", /*is_fixed=*/true}
                  : KnownShares(run.options, profile, limits);
  SetWeights(shares, limits);
  FOREBAY_ASSIGN_OR_RETURN(run.plan, MakePlan(run.config, run.options, limits));
  const auto show = [&] {
    observer.OnPlan(FormatPlan(run.plan, run.config, run.options), ToJson(run.plan));
  };
  // A dry run leaves the disks in peace.
  const bool measures =
      !run.resumed && !run.options.dry_run && limits.disks.size() > 1 && shares.origin.empty();
  if (!measures) show();
  if (!run.resumed) {
    FOREBAY_RETURN_IF_ERROR(
        OpenEngineFor(NewStoreDirectories(run.options), observer, environment, run));
  }
  if (measures) {
    FOREBAY_ASSIGN_OR_RETURN(shares, MeasuredShares(*run.engine, limits, stop));
    SetWeights(shares, limits);
    FOREBAY_ASSIGN_OR_RETURN(run.plan, MakePlan(run.config, run.options, limits));
    show();
  }
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

absl::StatusOr<PreparedRun> Prepare(const ResolvedOptions& resolved,
                                    const std::function<bool()>& stop, TrainObserver& observer,
                                    const TrainEnvironment& environment) {
  PreparedRun run;
  run.options = resolved.options;
  if (run.options.threads <= 0) {
    run.options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }
  run.paths = RunPaths(run.options.out);
  run.model_directory = run.options.model;
  // The folders first, then the model: a look at either costs nothing, while making tokens of the
  // data may take minutes.
  if (!run.options.resume) FOREBAY_RETURN_IF_ERROR(CheckFoldersAreFree(run.options));
  FOREBAY_ASSIGN_OR_RETURN(run.config, ReadDecoderConfig(run.options.model));
  // The result takes it along; that it is damaged should not be found by the first text after days.
  FOREBAY_RETURN_IF_ERROR(ReadStopTokens(run.options.model, run.config).status());
  Json run_json;
  ModelSource source;
  if (run.options.resume) {
    FOREBAY_ASSIGN_OR_RETURN(run_json, OpenRunToResume(resolved, observer, environment, run));
  } else {
    FOREBAY_ASSIGN_OR_RETURN(source, OpenModel(run));
  }
  FOREBAY_RETURN_IF_ERROR(PlanRun(stop, observer, environment, run));
  FOREBAY_ASSIGN_OR_RETURN(run.data, OpenData(run.options.data, run.options, run.config, stop));
  if (!run.options.eval_data.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(run.eval_data,
                             OpenData(run.options.eval_data, run.options, run.config, stop));
  }
  if (stop()) return InterruptedError("stopped on request");
  FOREBAY_ASSIGN_OR_RETURN(run.num_steps, NumSteps(run.options, run.data->info()));
  if (run.options.warmup > run.num_steps) {
    return UsageError(fmt::format(
        "--warmup={} is longer than the run: --epochs={} of '{}' are {} steps of {} rows, so the "
        "learning rate would never reach --lr",
        run.options.warmup, run.options.epochs, run.options.data, run.num_steps,
        run.options.batch * run.options.accum));
  }
  FOREBAY_ASSIGN_OR_RETURN(run.lr_schedule, MakeLrSchedule(run.options, run.num_steps));
  FOREBAY_ASSIGN_OR_RETURN(const Json fingerprint,
                           MakeFingerprint(run.options, run.num_steps, run.data->info()));
  run.fingerprint_digest = FingerprintDigest(fingerprint);
  run.budget = std::make_unique<MemoryBudget>(run.plan.ram_budget_bytes);
  FOREBAY_RETURN_IF_ERROR(run.budget->Charge("runtime", kRuntimeBytes));
  FOREBAY_RETURN_IF_ERROR(run.budget->Charge(
      "checksums of the store", TensorStore::SealBytes(run.plan.tiles, run.plan.num_slots)));
  if (run.options.save_every > 0) {
    FOREBAY_RETURN_IF_ERROR(run.budget->Charge("export beside the steps", kExportBytes));
  }
  FOREBAY_RETURN_IF_ERROR(run.resumed
                              ? ContinueRun(resolved, fingerprint, std::move(run_json), run)
                              : CreateRun(resolved, fingerprint, source, stop, observer, run));
  return run;
}

}  // namespace

absl::StatusOr<PreparedRun> PrepareRun(const ResolvedOptions& resolved,
                                       const std::function<bool()>& stop, TrainObserver& observer,
                                       const TrainEnvironment& environment) {
  absl::StatusOr<PreparedRun> run = Prepare(resolved, stop, observer, environment);
  if (ExitCodeOf(run.status()) != ExitCode::kInterrupted) return run;
  return InterruptedError(
      fmt::format("stopped on request before the first step: {}. Start the same command again",
                  resolved.options.resume ? "the run is as it was" : "nothing was begun"));
}

}  // namespace forebay
