#include "forebay/train/run/inspect.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/process/io_priority.h"
#include "forebay/base/round_up.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/store/store_state.h"
#include "forebay/train/export/export_manifest.h"
#include "forebay/train/export/run_state.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/repair_records.h"
#include "forebay/train/files/run_files.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_lock.h"
#include "forebay/train/files/store_owner.h"

namespace forebay {
namespace {

constexpr char kVerifying[] = "verifying";
constexpr char kHashing[] = "hashing";

Json TensorEntry(const std::string& name, const Shape& shape, std::string_view dtype,
                 int64_t bytes) {
  Json entry;
  entry["name"] = name;
  entry["shape"] = shape;
  entry["dtype"] = dtype;
  entry["bytes"] = bytes;
  return entry;
}

// Whether the weights are those that config.json describes: of files that are what was exported,
// too.
absl::Status CheckIsAModel(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(path));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                           CheckpointReader::Open(path));
  return MatchCheckpoint(*reader, config, BuildInventory(config)).status();
}

std::function<void(int64_t done, int64_t all)> ProgressOf(const char* what,
                                                          const InspectOptions& options) {
  return [what, &options](int64_t done, int64_t all) {
    if (options.progress) options.progress(what, done, all);
  };
}

absl::StatusOr<Json> VerifyModel(const std::string& path, const InspectOptions& options) {
  const Stopwatch watch;
  FOREBAY_ASSIGN_OR_RETURN(const ExportCheck check,
                           CheckExport(path, ProgressOf(kVerifying, options)));
  Json damaged = Json::array();
  for (const ExportDamage& damage : check.damaged) {
    damaged.push_back({{"file", damage.file}, {"message", damage.message}});
  }
  const absl::Status is_a_model = damaged.empty() ? CheckIsAModel(path) : absl::OkStatus();
  if (!is_a_model.ok()) {
    damaged.push_back(
        {{"file", JoinPath(path, "config.json")}, {"message", MessageOf(is_a_model)}});
  }
  return Json{{"bytes", check.bytes}, {"seconds", watch.Seconds()}, {"damaged", damaged}};
}

bool HasManifest(const std::string& folder) {
  return FileExists(JoinPath(folder, kExportManifestName));
}

absl::StatusOr<Json> InspectModel(const std::string& path, const InspectOptions& options) {
  Json verified;
  if (options.verify) {
    // First: what is damaged cannot be expected to be a model, and which file it is says more.
    FOREBAY_ASSIGN_OR_RETURN(verified, VerifyModel(path, options));
    if (!verified["damaged"].empty()) {
      return Json{{"kind", "model"}, {"path", path}, {"verified", std::move(verified)}};
    }
  }
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(path));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                           CheckpointReader::Open(path));
  int64_t params = 0;
  int64_t bytes = 0;
  std::map<std::string, int64_t> dtypes;
  Json tensors = Json::array();
  for (const auto& [name, tensor] : reader->tensors()) {
    const SafetensorsEntry& entry = tensor.entry;
    const int64_t tensor_bytes = entry.end_bytes - entry.begin_bytes;
    params += NumElems(entry.shape);
    bytes += tensor_bytes;
    ++dtypes[entry.dtype_name];
    tensors.push_back(TensorEntry(name, entry.shape, entry.dtype_name, tensor_bytes));
  }
  Json json;
  json["kind"] = "model";
  json["path"] = path;
  json["architecture"] = config.architecture;
  json["layers"] = config.num_layers;
  json["hidden"] = config.hidden_size;
  json["vocab"] = config.vocab_size;
  json["max_positions"] = config.max_positions;
  FOREBAY_ASSIGN_OR_RETURN(json["end_tokens"][kGenerationConfig], ReadGenerationStopTokens(path));
  json["end_tokens"][kConfigName] = config.eos_token_ids;
  json["num_tensors"] = tensors.size();
  json["params"] = params;
  json["bytes"] = bytes;
  json["dtypes"] = dtypes;
  if (options.hash) {
    FOREBAY_ASSIGN_OR_RETURN(json["digest"], ModelDigest(path, ProgressOf(kHashing, options)));
  }
  if (options.verify) json["verified"] = std::move(verified);
  if (options.tensors) json["tensors"] = std::move(tensors);
  return json;
}

Json ToJson(const std::vector<TileDamage>& damaged) {
  Json json = Json::array();
  for (const TileDamage& damage : damaged) {
    json.push_back({{"tile", damage.tile},
                    {"layer", damage.layer},
                    {"file", damage.file},
                    {"offset_bytes", damage.offset_bytes},
                    {"size_bytes", damage.size_bytes},
                    {"message", damage.message}});
  }
  return json;
}

absl::StatusOr<Json> Verify(TensorStore& store, bool in_use, const InspectOptions& options) {
  if (in_use && store.num_slots() == 1) {
    return EnvironmentError(fmt::format(
        "the run in '{}' keeps one copy of its state (--durability=none), which its process writes "
        "over in place: it cannot be verified meanwhile. Stop the run first (Ctrl-C saves it)",
        store.directory()));
  }
  const int64_t all_bytes = store.tiles().weight_area_bytes() + store.tiles().state_area_bytes();
  MemoryBudget budget(0);
  std::vector<TileDamage> damaged;
  std::vector<ScrubbedStep> steps;
  const Stopwatch watch;
  const auto progress = [&](int64_t done) {
    if (options.progress) options.progress(kVerifying, done, all_bytes);
  };
  if (in_use) {
    FOREBAY_RETURN_IF_ERROR(store.ScrubBesideWriter(&budget, progress, damaged, steps));
  } else {
    steps.push_back({store.committed().step, all_bytes});
    FOREBAY_RETURN_IF_ERROR(store.Scrub(&budget, progress, damaged));
  }
  Json of_steps = Json::array();
  for (const ScrubbedStep& step : steps) {
    of_steps.push_back({{"step", step.step}, {"bytes", step.bytes}});
  }
  return Json{{"bytes", all_bytes},
              {"seconds", watch.Seconds()},
              {"damaged", ToJson(damaged)},
              {"steps", std::move(of_steps)}};
}

// Once the store is in order: what belongs to what it has committed.
absl::StatusOr<RestoredFiles> RepairRecordsOf(const std::string& path,
                                              const std::vector<std::string>& directories,
                                              Engine* engine, const std::string& uuid) {
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<TensorStore> store,
                           TensorStore::Open(directories, engine, uuid));
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*store));
  FOREBAY_RETURN_IF_ERROR(CheckTrainer(store->committed(), QuotedList(directories)));
  return RepairRecords(path, store->committed());
}

Json RepairedJson(const RepairReport& report) {
  return {{"changed", report.changed},
          {"step_before", report.step_before},
          {"step", report.step},
          {"damaged", ToJson(report.damaged)},
          {"notes", report.notes}};
}

// For who is told of an error only.
std::string WhatWasRepaired(const RepairReport& report) {
  if (report.step_before >= 0 && report.step != report.step_before) {
    return fmt::format("the store was set back from step {} to step {}", report.step_before,
                       report.step);
  }
  return report.changed ? fmt::format("the store was repaired, at step {}", report.step)
                        : fmt::format("the store is whole, at step {}", report.step);
}

// The store first, then its records.
absl::Status Repair(const std::string& path, const InspectOptions& options, Engine* engine,
                    Json& json) {
  FOREBAY_ASSIGN_OR_RETURN(const Json found, ReadRunJson(path));
  FOREBAY_RETURN_IF_ERROR(CheckIsKept(path, found));
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd lock, TakeRunLock(path));
  FOREBAY_ASSIGN_OR_RETURN(const Json run, FindRunJson(path));
  const std::string uuid = StoreUuidOf(run);
  const std::vector<std::string> directories = StoreDirectoriesOf(path, run);
  for (const std::string& directory : directories) {
    FOREBAY_RETURN_IF_ERROR(CheckIsNotOfAnother(directory, path, uuid));
  }
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(
      const RepairReport report,
      TensorStore::Repair(directories, engine, uuid, &budget, ProgressOf(kVerifying, options)));
  json["repaired"] = RepairedJson(report);
  const absl::StatusOr<RestoredFiles> records = RepairRecordsOf(path, directories, engine, uuid);
  if (!records.ok()) return Annotate(records.status(), WhatWasRepaired(report));
  json["written_anew"] = records->written;
  if (!records->lost.empty()) json["lost"] = records->lost;
  return absl::OkStatus();
}

// What a slot holds of a tensor: weights and state.
int64_t BytesOf(const TileMap& tiles, const TensorSpec& tensor) {
  if (tensor.num_elems == 0) return 0;
  const Tile& tile = tiles.tiles()[tiles.TileAt(tensor.layer, tensor.offset_elems)];
  const TilePlanes& planes = tiles.PlanesOf(tile);
  int64_t bytes = 0;
  for (int plane = 0; plane < planes.size(); ++plane) {
    const bool is_scale = planes.IsScale(plane);
    bytes += planes.Bytes(
        plane, is_scale ? RoundUp(tensor.num_elems, kMomentBlockElems) : tensor.num_elems);
  }
  return bytes;
}

// A disk gives all it has for eight pieces at a time, while one thread hashes what has come. Beside
// a run that is not what it is asked for.
std::unique_ptr<Engine> EngineToInspect(bool in_use) {
  return CreateThreadsEngine({.num_threads = in_use ? 1 : 8, .block_bytes = int64_t{4} << 20});
}

// Needs the folders of all ranks, where they divide the state.
absl::StatusOr<std::string> DigestOfRun(const std::string& path, const Json& run, Engine* engine,
                                        TensorStore& store, const DigestProgress& progress) {
  if (PartOf(run).of == 1) return StateDigest(store, progress);
  FOREBAY_ASSIGN_OR_RETURN(const RunState state, RunState::Open(path, engine));
  return state.Digest(progress);
}

// Describes a store by its own records. `tensors` gets one entry per tensor.
Json DescribeStore(const TensorStore& store, Json& tensors) {
  const TileMap& tiles = store.tiles();
  const DType dtype = WeightDType(tiles.layout());
  int64_t bytes = 0;
  for (const TensorSpec& tensor : store.inventory().tensors()) {
    const int64_t tensor_bytes = BytesOf(tiles, tensor);
    bytes += tensor_bytes;
    tensors.push_back(TensorEntry(tensor.name, tensor.shape,
                                  tensor.raw ? "raw" : SafetensorsName(dtype), tensor_bytes));
  }
  Json json;
  json["notes"] = store.notes();
  json["num_tensors"] = tensors.size();
  json["params"] = store.inventory().num_params();
  json["bytes"] = bytes;
  json["step"] = store.committed().step;
  json["slots"] = store.num_slots();
  json["layout"] = NameOf(tiles.layout());
  json["moments"] = Json::array();
  if (tiles.moment_set().m) json["moments"].push_back("m");
  if (tiles.moment_set().v) json["moments"].push_back("v");
  json["tile_elems"] = tiles.tile_elems();
  const StripeBytes stripe_bytes = TensorStore::DiskBytes(tiles, store.num_slots(), {});
  json["store_bytes"] = Total(stripe_bytes);
  json["stripes"] = Json::array();
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    json["stripes"].push_back({{"folder", store.directories()[stripe]},
                               {"weight", tiles.stripe_weights()[stripe]},
                               {"bytes", stripe_bytes[stripe]}});
  }
  return json;
}

absl::StatusOr<Json> InspectRun(const std::string& path, const InspectOptions& options) {
  Json repaired = Json::object();
  if (options.repair) {
    const std::unique_ptr<Engine> engine = EngineToInspect(/*in_use=*/false);
    FOREBAY_RETURN_IF_ERROR(Repair(path, options, engine.get(), repaired));
  }
  std::string note;
  FOREBAY_ASSIGN_OR_RETURN(const Json run, ReadRunJson(path, &note));
  const std::vector<std::string> directories = StoreDirectoriesOf(path, run);
  // A repair and a digest need the run for themselves: they wait for it, and say who has it.
  const bool in_use = !options.repair && !options.hash && IsAnyLocked(directories);
  std::optional<LowIoPriority> priority;
  if (in_use) priority.emplace();
  const std::unique_ptr<Engine> engine = EngineToInspect(in_use);
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorStore> store,
      OpenRunStore(path, directories, engine.get(),
                   in_use ? StoreAccess::kBesideWriter : StoreAccess::kReadOnly));
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*store));
  const std::string model = ModelOf(path, run);
  const absl::StatusOr<DecoderConfig> config =
      ReadDecoderConfig(RunFilesOf(run).empty() ? model : RunPaths(path).files);
  Json tensors = Json::array();
  Json json;
  json["kind"] = "run";
  json["path"] = path;
  json["in_use"] = in_use;
  // The folder that the run started from may be gone; the store stands for itself.
  json["architecture"] = config.ok() ? config->architecture : "";
  json.update(DescribeStore(*store, tensors));
  if (const RankPart part = PartOf(run); part.of > 1) json["part"] = ToJson(part);
  json["model"] = model;
  if (options.hash) {
    FOREBAY_ASSIGN_OR_RETURN(json["digest"], DigestOfRun(path, run, engine.get(), *store,
                                                         ProgressOf(kHashing, options)));
  }
  json.update(repaired);
  if (!note.empty()) json["note"] = note;
  if (options.verify) {
    FOREBAY_ASSIGN_OR_RETURN(json["verified"], Verify(*store, in_use, options));
  }
  if (options.tensors) json["tensors"] = std::move(tensors);
  return json;
}

// The store of a program that embeds forebay, in PyTorch for example, which has no run folder.
absl::StatusOr<Json> InspectStore(const std::string& path,
                                  const std::vector<std::string>& directories,
                                  const InspectOptions& options) {
  if (options.hash) {
    return UsageError(fmt::format(
        "--hash is a digest of a run or a model, and '{}' is the store of another program. "
        "--verify compares all of it with its checksums",
        path));
  }
  const bool in_use = !options.repair && IsAnyLocked(directories);
  const std::unique_ptr<Engine> engine = EngineToInspect(in_use);
  Json json = {{"kind", "store"}, {"path", path}, {"in_use", in_use}, {"architecture", ""}};
  if (options.repair) {
    MemoryBudget budget(0);
    FOREBAY_ASSIGN_OR_RETURN(const RepairReport report,
                             TensorStore::Repair(directories, engine.get(), "", &budget,
                                                 ProgressOf(kVerifying, options)));
    json["repaired"] = RepairedJson(report);
  }
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorStore> store,
      TensorStore::Open(directories, engine.get(), "",
                        in_use ? StoreAccess::kBesideWriter : StoreAccess::kReadOnly));
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*store));
  Json tensors = Json::array();
  json.update(DescribeStore(*store, tensors));
  if (options.verify) {
    FOREBAY_ASSIGN_OR_RETURN(json["verified"], Verify(*store, in_use, options));
  }
  if (options.tensors) json["tensors"] = std::move(tensors);
  return json;
}

}  // namespace

absl::StatusOr<Json> Inspect(const std::string& path, const InspectOptions& options) {
  if (!FileExists(path)) {
    const std::vector<std::string> directories = absl::StrSplit(path, ',');
    if (std::all_of(directories.begin(), directories.end(), IsDirectory)) {
      return InspectStore(path, directories, options);
    }
    return BadInputError(fmt::format(
        "'{}' does not exist. Name a run folder (--out of train), a model folder, or the "
        "folder of a store (several: with commas between them)",
        path));
  }
  if (IsRunFolder(path)) return InspectRun(path, options);
  // Of an export, config.json may be what is missing.
  const bool is_model = IsDirectory(path) && (FileExists(JoinPath(path, "config.json")) ||
                                              (options.verify && HasManifest(path)));
  if (!is_model) {
    FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(path));
    if (HasCommit(found.state)) return InspectStore(path, {path}, options);
    return BadInputError(
        fmt::format("'{}' is neither a model folder (it has no config.json) nor a run folder (it "
                    "has no run.json), nor does it have a store",
                    path));
  }
  if (options.repair) {
    return UsageError(fmt::format(
        "--repair goes back to an older step of a run, and '{}' is a model folder", path));
  }
  return InspectModel(path, options);
}

}  // namespace forebay
