#include "forebay/train/files/run_folder.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/round_up.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/store/store_state.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_lock.h"
#include "forebay/train/files/store_owner.h"

namespace forebay {
namespace {

constexpr int64_t kDigestChunkElems = int64_t{1} << 20;

void HashHeading(Xxh3_128& hash, std::string_view name, const Shape& shape) {
  hash.UpdateInt(static_cast<int64_t>(name.size()));
  hash.Update(name);
  hash.UpdateInt(static_cast<int64_t>(shape.size()));
  for (const int64_t extent : shape) hash.UpdateInt(extent);
}

// Counts them for who wants to know.
class HashedValues {
 public:
  HashedValues(int64_t all, const DigestProgress& progress) : all_(all), progress_(progress) {}
  void Add(int64_t count) {
    done_ += count;
    if (progress_) progress_(done_, all_);
  }

 private:
  const int64_t all_;
  const DigestProgress& progress_;
  int64_t done_ = 0;
};

// Hashes `num_elems` values that `read(first, out)` delivers, a chunk at a time.
template <typename Read>
absl::Status HashValues(Xxh3_128& hash, int64_t num_elems, std::vector<float>& chunk,
                        HashedValues& hashed, Read read) {
  for (int64_t first = 0; first < num_elems; first += kDigestChunkElems) {
    const auto out = std::span(chunk).first(std::min(kDigestChunkElems, num_elems - first));
    FOREBAY_RETURN_IF_ERROR(read(first, out));
    hash.Update(std::as_bytes(out));
    hashed.Add(std::ssize(out));
  }
  return absl::OkStatus();
}

// One of the planes of m and v, as it is stored: m, v, and where they are codes their scales.
absl::Status HashMoment(Xxh3_128& hash, TensorStore& store, const TensorSpec& tensor,
                        TilePlane kind, std::span<std::byte> chunk, HashedValues& hashed) {
  if (tensor.num_elems == 0) return absl::OkStatus();
  const TileMap& tiles = store.tiles();
  const TilePlanes& planes =
      tiles.PlanesOf(tiles.tiles()[tiles.TileAt(tensor.layer, tensor.offset_elems)]);
  const int plane = planes.Find(kind);
  if (plane < 0) return absl::OkStatus();
  for (int64_t first = 0; first < tensor.num_elems; first += kDigestChunkElems) {
    const int64_t count = std::min(kDigestChunkElems, tensor.num_elems - first);
    const int64_t stored = planes.IsScale(plane) ? RoundUp(count, kMomentBlockElems) : count;
    const auto bytes = chunk.first(static_cast<size_t>(planes.Bytes(plane, stored)));
    FOREBAY_RETURN_IF_ERROR(store.ReadTilePlane(tensor, kind, first, count, bytes));
    hash.Update(bytes);
    if (!planes.IsScale(plane)) hashed.Add(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckIsKept(const std::string& run_directory, const Json& json) {
  if (json["state"] != kRunUnkept) return absl::OkStatus();
  return BadInputError(
      fmt::format("the run in '{}' kept its state only in memory, as --durability=none, "
                  "--export=none and its tiers ask, and left nothing of it. To have a model, train "
                  "again into another folder without --export=none",
                  run_directory));
}

absl::StatusOr<std::unique_ptr<TensorStore>> OpenRunStore(
    const std::string& run_directory, const std::vector<std::string>& directories, Engine* engine,
    StoreAccess access) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(run_directory));
  FOREBAY_RETURN_IF_ERROR(CheckIsKept(run_directory, json));
  std::vector<std::string> missing;
  for (const std::string& directory : directories) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(directory));
    if (!is_there) missing.push_back(directory);
  }
  if (!missing.empty()) {
    return BadInputError(
        fmt::format("the swap area of run '{}' is not at '{}'. It was removed ('forebay clean'), "
                    "its disk is not mounted, or it was moved: then 'forebay train --resume' with "
                    "--nvme finds it again",
                    run_directory, fmt::join(missing, "', '")));
  }
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Open(directories, engine, StoreUuidOf(json), access));
  if (store->has_commit()) {
    FOREBAY_RETURN_IF_ERROR(CheckTrainer(store->committed(), QuotedList(store->directories())));
  }
  return store;
}

absl::StatusOr<std::unique_ptr<TensorStore>> OpenRunStore(const std::string& run_directory,
                                                          Engine* engine, StoreAccess access) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> directories,
                           StoreDirectoriesOf(run_directory));
  return OpenRunStore(run_directory, directories, engine, access);
}

absl::Status CheckHasCommit(const TensorStore& store) {
  if (store.has_commit()) return absl::OkStatus();
  return CorruptError(fmt::format(
      "the store holds no committed step: there is no record in '{}'. Either it was stopped before "
      "its first one, or the file was damaged: 'forebay inspect RUN --repair' makes it anew from "
      "the checksums",
      JoinPath(store.directory(), kCommitName)));
}

absl::StatusOr<std::string> StateDigest(const Inventory& whole, std::span<TensorStore* const> parts,
                                        const DigestProgress& progress) {
  std::vector<const TensorSpec*> tensors;
  for (const TensorSpec& tensor : whole.tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  const MomentSet moments = parts.front()->tiles().moment_set();
  HashedValues hashed(whole.num_params() * (1 + int{moments.m} + int{moments.v}), progress);
  Xxh3_128 hash;
  std::vector<float> chunk(kDigestChunkElems);
  for (const TensorSpec* tensor : tensors) {
    const auto in = [&](TensorStore* part) -> const TensorSpec& {
      return part->inventory().tensors()[tensor - whole.tensors().data()];
    };
    HashHeading(hash, tensor->name, tensor->shape);
    for (TensorStore* const part : parts) {
      const auto read = [&](int64_t first, std::span<float> out) {
        return part->ReadTensor(in(part), TensorPlane::kMaster, first, out);
      };
      FOREBAY_RETURN_IF_ERROR(HashValues(hash, in(part).num_elems, chunk, hashed, read));
    }
    for (const TilePlane kind :
         {TilePlane::kM, TilePlane::kV, TilePlane::kMScale, TilePlane::kVScale}) {
      for (TensorStore* const part : parts) {
        FOREBAY_RETURN_IF_ERROR(HashMoment(hash, *part, in(part), kind,
                                           std::as_writable_bytes(std::span(chunk)), hashed));
      }
    }
  }
  hash.UpdateInt(parts.front()->committed().step);
  return hash.Hex();
}

absl::StatusOr<std::string> StateDigest(TensorStore& store, const DigestProgress& progress) {
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(store));
  TensorStore* const parts[] = {&store};
  return StateDigest(store.inventory(), parts, progress);
}

absl::StatusOr<std::string> ModelDigest(const std::string& model_directory,
                                        const DigestProgress& progress) {
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                           CheckpointReader::Open(model_directory));
  int64_t all = 0;
  for (const auto& entry : reader->tensors()) all += NumElems(entry.second.entry.shape);
  HashedValues hashed(all, progress);
  Xxh3_128 hash;
  std::vector<float> chunk(kDigestChunkElems);
  for (const auto& entry : reader->tensors()) {
    const CheckpointReader::Tensor& tensor = entry.second;
    HashHeading(hash, entry.first, tensor.entry.shape);
    FOREBAY_RETURN_IF_ERROR(HashValues(
        hash, NumElems(tensor.entry.shape), chunk, hashed,
        [&](int64_t first, std::span<float> out) { return reader->ReadF32(tensor, first, out); }));
  }
  return hash.Hex();
}

absl::StatusOr<CleanedRun> RemoveOwnParts(const std::string& run_directory, const std::string& uuid,
                                          const std::vector<std::string>& directories) {
  CleanedRun cleaned;
  std::vector<std::string> ours;
  for (const std::string& directory : directories) {
    FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(directory));
    const StoreOwner owner = FindOwner(directory, run_directory, uuid);
    if (found.file.empty() || owner.ownership == Ownership::kOurs) {
      ours.push_back(directory);
    } else {
      cleaned.of_others.push_back({directory, owner.why});
    }
  }
  // Only what stores are made of: run.json may have been written by anybody.
  FOREBAY_ASSIGN_OR_RETURN(RemovedParts removed, RemoveParts(ours, uuid));
  cleaned.freed_bytes = removed.freed_bytes;
  cleaned.not_there = std::move(removed.not_there);
  for (const std::string& directory : removed.of_others) {
    cleaned.of_others.push_back({directory, "it does not say that it is of this run's store"});
  }
  return cleaned;
}

absl::StatusOr<CleanedRun> CleanRun(const std::string& run_directory) {
  FOREBAY_RETURN_IF_ERROR(ReadRunJson(run_directory).status());
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd lock, TakeRunLock(run_directory));
  std::string note;
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(run_directory, &note));
  FOREBAY_ASSIGN_OR_RETURN(
      CleanedRun cleaned,
      RemoveOwnParts(run_directory, StoreUuidOf(json), StoreDirectoriesOf(run_directory, json)));
  cleaned.note = std::move(note);
  return cleaned;
}

}  // namespace forebay
