#include "forebay/train/start/create_run.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/files/convert_floats.h"
#include "forebay/offload/create_store.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/fingerprint.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/run_files.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/store_owner.h"
#include "forebay/train/files/swap_area.h"
#include "forebay/train/start/claim_folders.h"

namespace forebay {
namespace {

// The model folder that the run started from, or the one that it is copied from.
std::string FirstModel(const PreparedRun& run, const ModelSource& source) {
  if (!source.copied.has_value()) return NormalPath(run.options.model);
  return NormalPath(ModelOf(run.options.from, source.copied->run_json));
}

Json RunJson(const PreparedRun& run, std::string_view state, const StoreUuid& uuid,
             const Json& fingerprint, const ModelSource& source) {
  const Json stores = RecordedStoreDirectories(run.options.out, NewStoreDirectories(run.options));
  return {{"format", kRunFormat},
          {"state", state},
          {"stores", stores},
          {"store_uuid", ToHex(uuid)},
          {"model", FirstModel(run, source)},
          {"fingerprint", fingerprint},
          {"files", ToJson(run.files)},
          {"part", ToJson(PartOf(run.options))}};
}

// All of `values`, the tensor's elements from `from` on, from the model's files, in pieces between
// which `stop` is heard.
absl::Status ReadTensor(const CheckpointReader& reader, const CheckpointReader::Tensor& tensor,
                        int64_t from, const std::function<bool()>& stop, std::span<float> values) {
  constexpr size_t kPieceElems = size_t{1} << 24;
  for (size_t first = 0; first < values.size(); first += kPieceElems) {
    if (stop()) return InterruptedError("stopped on request");
    const auto piece = values.subspan(first, std::min(kPieceElems, values.size() - first));
    FOREBAY_RETURN_IF_ERROR(reader.ReadF32(tensor, from + static_cast<int64_t>(first), piece));
  }
  return absl::OkStatus();
}

// With fp16 weights one that is too large would be infinite, and no step ever an update.
absl::Status CheckFits(DType dtype, const std::string& model, const TensorSpec& tensor,
                       std::span<const float> values) {
  const std::optional<float> too_large =
      dtype == DType::kF16 ? FirstBeyondFp16(values) : std::nullopt;
  if (!too_large.has_value()) return absl::OkStatus();
  return BadInputError(
      fmt::format("'{}': tensor '{}' has a weight of {}, and fp16 ends at {}. Train the model with "
                  "--precision=bf16 or fp32",
                  model, tensor.name, *too_large, kLargestFp16));
}

std::function<void(double)> OnSpace(TrainObserver& observer) {
  return
      [&observer](double fraction) { observer.OnPhase("writing out the space on disk", fraction); };
}

// Their values, from the model's files. If some are in no file of the store, they are read
// twice.
TensorFiller WeightsOf(std::shared_ptr<const ModelSource> source, const Inventory& own,
                       const std::function<bool()>& stop, TrainObserver& observer,
                       const PreparedRun& run) {
  const int64_t all_elems = own.num_params() * (run.plan.store_files.records ? 1 : 2);
  return [source = std::move(source), parts = run.parts, rank = run.options.rank,
          dtype = WeightDType(run.options.layout), model = run.options.model, all_elems, stop,
          &observer, done_elems = int64_t{0}](const TensorSpec& tensor, int64_t first_elem,
                                              std::span<float> values) mutable {
    // The store has its own copy of the inventory; names identify tensors in both.
    const int64_t position =
        source->inventory.Find(tensor.name) - source->inventory.tensors().data();
    const auto index = static_cast<int>(position);
    const int64_t part = parts == nullptr ? 0 : parts->FirstElem(index, rank);
    done_elems += std::ssize(values);
    observer.OnPhase("importing the model",
                     static_cast<double>(done_elems) / static_cast<double>(all_elems));
    FOREBAY_RETURN_IF_ERROR(
        ReadTensor(*source->reader, *source->tensors[position], part + first_elem, stop, values));
    return CheckFits(dtype, model, tensor, values);
  };
}

// This rank's part of the model, of which every moment is zero.
absl::StatusOr<std::unique_ptr<TensorStore>> ImportStore(
    std::shared_ptr<const ModelSource> source, StoreOptions& options, const Inventory& own,
    const CommitInfo& first, const std::function<bool()>& stop, TrainObserver& observer,
    const PreparedRun& run) {
  const TensorFiller fill = WeightsOf(std::move(source), own, stop, observer, run);
  if (!options.files.records) {
    FOREBAY_ASSIGN_OR_RETURN(options.first_values,
                             FirstValuesOf(fill, own, run.plan.tiles, run.budget.get()));
  }
  return CreateFilledStore(options, own, fill, first, run.engine.get(), run.budget.get(), stop,
                           OnSpace(observer));
}

// This rank's part of the state of --from, at its step.
absl::StatusOr<std::unique_ptr<TensorStore>> CopyStore(std::shared_ptr<const ModelSource> source,
                                                       StoreOptions& options, const Inventory& own,
                                                       const std::function<bool()>& stop,
                                                       TrainObserver& observer,
                                                       const PreparedRun& run) {
  const CopiedState& copied = *source->copied;
  struct Shape {
    Inventory own;
    TileMap tiles;
  };
  const auto shape = std::make_shared<const Shape>(own, run.plan.tiles);
  const TileFiller fill = [source = std::move(source), shape, parts = run.parts, &observer,
                           copy = CopyOf(&copied.state->parts(), &shape->own, run.parts.get(),
                                         run.options.rank, &shape->tiles)](
                              int tile, std::span<std::byte> weights, std::span<std::byte> state) {
    observer.OnPhase("copying the state",
                     static_cast<double>(tile) / static_cast<double>(shape->tiles.num_tiles()));
    return copy(tile, weights, state);
  };
  if (!options.files.records) {
    FOREBAY_ASSIGN_OR_RETURN(options.first_values,
                             FirstValuesOf(fill, shape->tiles, run.budget.get()));
  }
  CommitInfo first = copied.state->committed();
  first.trainer.erase(kWrittenBytesKey);  // those are the other run's
  return CreateCopiedStore(options, own, fill, first, run.engine.get(), run.budget.get(), stop,
                           OnSpace(observer));
}

}  // namespace

absl::Status OpenWeights(const PreparedRun& run, ModelSource& source) {
  source.inventory = BuildInventory(run.config);
  FOREBAY_ASSIGN_OR_RETURN(source.reader, CheckpointReader::Open(run.options.model));
  FOREBAY_ASSIGN_OR_RETURN(source.tensors,
                           MatchCheckpoint(*source.reader, run.config, source.inventory));
  return absl::OkStatus();
}

absl::Status CreateRun(const ResolvedOptions& resolved, const Json& fingerprint,
                       const std::shared_ptr<const ModelSource>& source,
                       const std::function<bool()>& stop, TrainObserver& observer,
                       PreparedRun& run) {
  if (run.options.dry_run) return absl::OkStatus();
  for (const std::string& nvme : run.options.nvme) {
    // A disk that is not mounted, or a slip of the hand, would go unnoticed.
    if (run.plan.StoreBytes() > 0 && !IsDirectory(nvme)) {
      observer.OnNote(fmt::format("--nvme: '{}' was not there and is made", nvme));
    }
  }
  std::string note;
  FOREBAY_ASSIGN_OR_RETURN(run.lock, ClaimFolders(run.options, &note));
  if (!note.empty()) observer.OnNote(note);
  StoreOptions store = StoreOptionsOf(run.plan, NewStoreDirectories(run.options));
  FOREBAY_ASSIGN_OR_RETURN(store.uuid, NewStoreUuid());
  store.finished_by_owner = true;
  FOREBAY_RETURN_IF_ERROR(
      WriteRunJson(run.paths, RunJson(run, kRunCreating, *store.uuid, fingerprint, *source)));
  FOREBAY_RETURN_IF_ERROR(WriteRunFiles(run.paths.files, source->files));
  FOREBAY_RETURN_IF_ERROR(WriteRecords(run, resolved));
  store.write_owner = [&](const std::string& directory) {
    return WriteOwner(directory, run.options.out, ToHex(*store.uuid));
  };
  const Inventory own = InventoryOf(run.config, PartOf(run.options));
  if (source->copied.has_value()) {
    FOREBAY_ASSIGN_OR_RETURN(run.store, CopyStore(source, store, own, stop, observer, run));
  } else {
    CommitInfo first;
    first.trainer = TrainerOf({run.num_steps, FingerprintDigest(fingerprint), DigestOf(run.files)});
    FOREBAY_ASSIGN_OR_RETURN(run.store,
                             ImportStore(source, store, own, first, stop, observer, run));
  }
  run.model_directory = run.paths.files;
  // Where one rank's run is ready, every rank has its store.
  if (run.ranks != nullptr) FOREBAY_RETURN_IF_ERROR(run.ranks->Barrier());
  const char* const state = store.files.records ? kRunReady : kRunUnkept;
  FOREBAY_RETURN_IF_ERROR(
      WriteRunJson(run.paths, RunJson(run, state, *store.uuid, fingerprint, *source)));
  // Not before: whoever finds a run that is being created may remove only what is marked.
  return run.store->FinishCreation();
}

}  // namespace forebay
