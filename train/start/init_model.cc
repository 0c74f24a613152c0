#include "forebay/train/start/init_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/shared_file.h"
#include "forebay/model/files/convert_floats.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/offload/create_store.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_lock.h"
#include "forebay/train/files/store_owner.h"

namespace forebay {
namespace {

constexpr int64_t kInitChunkElems = int64_t{1} << 20;
constexpr int64_t kTaskElems = int64_t{1} << 14;

enum class Fill { kZero, kOne, kNormal };

Fill FillOf(const TensorSpec& tensor) {
  switch (static_cast<TensorRole>(tensor.role)) {
    case TensorRole::kAttnNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kFinalNorm:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return Fill::kOne;
    case TensorRole::kAttnNormBias:
    case TensorRole::kMlpNormBias:
    case TensorRole::kFinalNormBias:
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kQkvBias:
    case TensorRole::kAttnOutBias:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
      return Fill::kZero;
    default:
      return Fill::kNormal;
  }
}

double StandardDeviation(const DecoderConfig& config, const TensorSpec& tensor) {
  const auto role = static_cast<TensorRole>(tensor.role);
  const bool into_residual = role == TensorRole::kAttnOut || role == TensorRole::kDown;
  // Conv1D weights mark GPT-2, the family whose initialisation keeps the residual stream's
  // variance.
  if (into_residual && config.linear_in_out) {
    return config.initializer_range / std::sqrt(2.0 * config.num_layers);
  }
  return config.initializer_range;
}

// A configuration on its way to the new folder.
struct Source {
  Json json;
  DecoderConfig config;
  std::string directory;  // with tokenizer files; empty when a bare file was named
};

absl::StatusOr<Source> ReadSource(const std::string& path) {
  Source source;
  const bool is_folder = IsDirectory(path);
  if (is_folder) source.directory = path;
  const std::string file = is_folder ? JoinPath(path, "config.json") : path;
  FOREBAY_ASSIGN_OR_RETURN(source.json, ReadJsonFile(file, kMaxConfigFileBytes));
  FOREBAY_ASSIGN_OR_RETURN(source.config, ParseDecoderConfig(source.json, file));
  return source;
}

DType WantedDType(const InitOptions& options, const DecoderConfig& config) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (options.dtype == NameOf(dtype)) return dtype;
  }
  return config.dtype;
}

// `out` new or empty, but for a lock. UsageError otherwise.
absl::Status CheckOutIsFree(const std::string& out) {
  if (!FileExists(out)) return absl::OkStatus();
  const std::string lock = RunPaths(out).lock;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(out));
  bool is_free = IsDirectory(out) && names.size() <= (FileExists(lock) ? 1 : 0);
  if (is_free && !names.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(is_free, LooksLikeARunLock(lock));
  }
  if (is_free) return absl::OkStatus();
  return UsageError(fmt::format(
      "--out '{}' exists and is not empty. Choose a new folder; nothing was changed", out));
}

// config.json and what belongs to it, with the dtype of the new weights.
absl::Status WriteSidecars(const Source& source, const std::string& directory, DType dtype) {
  if (!source.directory.empty()) return CopySidecarFiles(source.directory, directory, dtype);
  return WriteConfig(source.json, dtype, directory);
}

// Memory of the process, whatever the model; a run's store has its checksums there.
int64_t LeastBytes(const InitOptions& options, const Inventory& inventory, DType dtype) {
  if (!options.as_run) return kRuntimeBytes + kInitChunkElems * (4 + SizeOf(dtype));
  const StoreOptions store;
  const TileMap tiles(inventory, ExactLayoutOf(dtype), store.tile_elems);
  return kRuntimeBytes + TensorStore::SealBytes(tiles, store.num_slots) +
         HostBuffer::ChargedBytes(tiles.max_weight_bytes() + tiles.max_state_bytes()) +
         HostBuffer::ChargedBytes(tiles.max_tile_elems() * 4);
}

absl::Status WriteModelFolder(const InitOptions& options, const Source& source, DType dtype,
                              const std::function<void(double)>& progress) {
  const Inventory inventory = BuildInventory(source.config);
  std::vector<const TensorSpec*> tensors;
  for (const TensorSpec& tensor : inventory.tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  std::vector<SafetensorsWriter::Planned> planned;
  for (const TensorSpec* tensor : tensors) planned.push_back({tensor->name, dtype, tensor->shape});
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(JoinPath(options.out, "model.safetensors"),
                                                     planned, {{"format", "pt"}}));
  ThreadPool pool(options.num_threads, "init");
  std::vector<float> chunk(kInitChunkElems);
  std::vector<std::byte> bytes;
  int64_t done = 0;
  for (const TensorSpec* tensor : tensors) {
    for (int64_t first = 0; first < tensor->num_elems; first += kInitChunkElems) {
      const auto values =
          std::span(chunk).first(std::min(kInitChunkElems, tensor->num_elems - first));
      FillInitialValues(source.config, *tensor, options.seed, first, values, pool);
      bytes.resize(values.size() * SizeOf(dtype));
      ConvertF32(values, dtype, bytes);
      FOREBAY_RETURN_IF_ERROR(writer->Append(bytes));
      done += static_cast<int64_t>(values.size());
      if (progress)
        progress(static_cast<double>(done) / static_cast<double>(inventory.num_params()));
    }
  }
  FOREBAY_RETURN_IF_ERROR(writer->Finish().status());
  return WriteSidecars(source, options.out, dtype);
}

// A run that `train --resume` continues from step 0. It has no model folder to come from, so it
// carries config and tokenizer itself; its fingerprint is that of the first training session.
absl::Status WriteRun(const InitOptions& options, const Source& source, DType dtype,
                      const InitResult& result, const std::function<void(double)>& progress) {
  FOREBAY_RETURN_IF_ERROR(MakeSharedDirectories(result.model));
  FOREBAY_RETURN_IF_ERROR(WriteSidecars(source, result.model, dtype));
  FOREBAY_ASSIGN_OR_RETURN(const StoreUuid uuid, NewStoreUuid());
  Json run = {{"format", kRunFormat},
              {"state", kRunCreating},
              {"stores", {"swap"}},
              {"store_uuid", ToHex(uuid)},
              {"model", std::filesystem::path(result.model).filename().string()},
              {"fingerprint", nullptr},
              {"files", nullptr}};
  const RunPaths paths(options.out);
  FOREBAY_RETURN_IF_ERROR(WriteRunJson(paths, run));

  const Inventory inventory = BuildInventory(source.config);
  StoreOptions store;
  store.directories = {result.store};
  store.uuid = uuid;
  store.finished_by_owner = true;
  store.layout = ExactLayoutOf(dtype);
  store.write_owner = [&](const std::string& directory) {
    return WriteOwner(directory, options.out, ToHex(uuid));
  };
  ThreadPool pool(options.num_threads, "init");
  int64_t done = 0;
  const TensorFiller fill = [&](const TensorSpec& tensor, int64_t first_elem,
                                std::span<float> values) {
    FillInitialValues(source.config, tensor, options.seed, first_elem, values, pool);
    done += std::ssize(values);
    if (progress) {
      progress(static_cast<double>(done) / (2 * static_cast<double>(inventory.num_params())));
    }
    return absl::OkStatus();
  };
  const auto on_space = [&](double fraction) {  // of the other slot, which is as large
    if (progress) progress((1 + fraction) / 2);
  };
  MemoryBudget no_limit(0);
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({});
  CommitInfo first;
  first.trainer = Json::object();
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorStore> made,
      CreateFilledStore(store, inventory, fill, first, engine.get(), &no_limit, {}, on_space));
  run["state"] = kRunReady;
  FOREBAY_RETURN_IF_ERROR(WriteRunJson(paths, run));
  return made->FinishCreation();
}

}  // namespace

void FillInitialValues(const DecoderConfig& config, const TensorSpec& tensor, uint64_t seed,
                       int64_t first_elem, std::span<float> out, ThreadPool& pool) {
  const Fill fill = FillOf(tensor);
  if (fill != Fill::kNormal) {
    std::ranges::fill(out, fill == Fill::kOne ? 1.0f : 0.0f);
    return;
  }
  const double deviation = StandardDeviation(config, tensor);
  const CounterRng rng(seed, Xxh3_64(std::as_bytes(std::span(tensor.name))));
  const auto count = static_cast<int64_t>(out.size());
  pool.ParallelFor((count + kTaskElems - 1) / kTaskElems, [&](int64_t task) {
    const int64_t end = std::min(count, (task + 1) * kTaskElems);
    for (int64_t i = task * kTaskElems; i < end; ++i) {
      out[i] = static_cast<float>(deviation * rng.Normal(static_cast<uint64_t>(first_elem + i)));
    }
  });
}

absl::StatusOr<InitResult> InitModel(const InitOptions& options,
                                     const std::function<void(double)>& progress) {
  FOREBAY_ASSIGN_OR_RETURN(const Source source, ReadSource(options.config));
  const DType dtype = WantedDType(options, source.config);
  const absl::Status is_free = CheckOutIsFree(options.out);
  // "Somebody is at work there" says more than "it is not empty".
  FOREBAY_RETURN_IF_ERROR(CheckRunIsNotInUse(options.out));
  FOREBAY_RETURN_IF_ERROR(is_free);
  InitResult result;
  result.architecture = source.config.architecture;
  const Inventory inventory = BuildInventory(source.config);
  result.num_params = inventory.num_params();
  if (options.ram_bytes > 0) {
    FOREBAY_RETURN_IF_ERROR(
        CheckModelFits(LeastBytes(options, inventory, dtype), options.ram_bytes));
  }
  result.model = options.as_run ? JoinPath(options.out, "source") : options.out;
  if (options.as_run) {
    result.store = JoinPath(options.out, "swap");
    result.precision = NameOf(dtype);
  }
  FOREBAY_RETURN_IF_ERROR(MakeSharedDirectories(options.out));
  // A model folder has it only while it is made: what is removed below is nobody else's.
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd lock, TakeRunLock(options.out));
  // Another may have come first.
  FOREBAY_RETURN_IF_ERROR(CheckOutIsFree(options.out));
  const absl::Status status = options.as_run ? WriteRun(options, source, dtype, result, progress)
                                             : WriteModelFolder(options, source, dtype, progress);
  if (status.ok()) {
    if (!options.as_run) FOREBAY_RETURN_IF_ERROR(RemoveTree(RunPaths(options.out).lock));
    return result;
  }
  // Only what was made here: the folder was new or empty.
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(options.out);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    RemoveTree(JoinPath(options.out, name)).IgnoreError();
  }
  return Annotate(status, fmt::format("making a model in '{}'", options.out));
}

Json ToJson(const InitResult& result) {
  Json json;
  json["architecture"] = result.architecture;
  json["params"] = result.num_params;
  json["model"] = result.model;
  if (!result.store.empty()) {
    json["store"] = result.store;
    json["precision"] = result.precision;
  }
  return json;
}

}  // namespace forebay
