// The inside of TensorStore, shared by its two source files: tensor_store.cc (creating, opening,
// committing) and tensor_store_tiles.cc (tiles and tensors). Not for use elsewhere.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/swap/commit_record.h"
#include "forebay/swap/store_manifest.h"
#include "forebay/swap/tensor_store.h"

namespace forebay {

inline int64_t RoundUpToBlock(int64_t bytes) {
  return (bytes + kIoAlignBytes - 1) / kIoAlignBytes * kIoAlignBytes;
}

// What has happened to one half (weights or state) of a tile since the last commit.
enum class TileProgress : uint8_t { kCommitted, kWriting, kWritten };

struct TensorStore::Impl {
  Impl(std::string store_directory, Engine* store_engine, StoreManifest store_manifest)
      : directory(std::move(store_directory)),
        engine(store_engine),
        manifest(std::move(store_manifest)),
        tiles(manifest.inventory, manifest.layout, manifest.tile_elems),
        weights_progress(tiles.tiles().size()),
        state_progress(tiles.tiles().size()) {
    record.slot = 1;  // nothing is committed yet, and the first writes go to slot A
  }
  ~Impl() {
    for (const int file : files) engine->RemoveFile(file);
  }

  struct FileSpec {
    const char* name;
    int64_t size_bytes;
    int* number;
  };
  std::vector<FileSpec> FileSpecs();
  absl::Status OpenFiles(bool create);
  absl::Status AddFile(DirectFile file, const std::string& path, int& number);
  absl::Status EnsureGradientArea(int64_t size_bytes);
  absl::Status FlushAll();
  absl::Status RecoverCommit();
  absl::Status ReadCopies(DecodedCopy& first, DecodedCopy& second);
  absl::Status WriteCopies(const CommitRecord& record, uint64_t& hash);
  absl::Status RunOp(IoKind kind, int file, int64_t offset_bytes, std::span<std::byte> buffer);

  // The caller holds slots_mutex, or is the thread that commits.
  uint32_t committed_slot() const { return record.slot; }
  uint32_t working_slot() const { return 1 - record.slot; }
  // The slot that holds a tile's newest value.
  uint32_t NewestSlot(const std::atomic<TileProgress>& progress) const;
  int64_t WeightOffset(const Tile& tile, uint32_t slot) const {
    return slot * tiles.weight_area_bytes() + tile.weight_offset_bytes;
  }
  int64_t StateOffset(const Tile& tile, uint32_t slot) const {
    return slot * tiles.state_area_bytes() + tile.state_offset_bytes;
  }
  const Tile& TileAt(int tile) const {
    FOREBAY_CHECK(tile >= 0 && tile < tiles.num_tiles());
    return tiles.tiles()[tile];
  }
  void Start(IoOp& op, IoKind kind, IoClass io_class, int file, int64_t offset_bytes,
             std::span<std::byte> buffer);
  template <typename Convert>
  absl::Status ForEachChunk(const TensorSpec& tensor, int64_t first_elem, int64_t num_elems,
                            const Convert& convert);

  const std::string directory;
  Engine* const engine;
  const StoreManifest manifest;
  const TileMap tiles;
  UniqueFd lock;
  std::vector<int> files;
  int weights_file = -1;
  int state_file = -1;
  int gradients_file = -1;
  int commit_file = -1;
  int64_t gradient_area_bytes = 0;
  bool reserve_space = true;
  std::string why_not_direct;

  bool has_commit = false;
  CommitRecord record;  // the committed one
  uint64_t record_hash = 0;
  CommitInfo committed;
  absl::Status failure;  // of a commit: the store takes no further one

  // Held while a commit turns written tiles into committed ones: layers are read ahead meanwhile,
  // and must find the slot and their progress of the same moment.
  mutable std::mutex slots_mutex;
  std::vector<std::atomic<TileProgress>> weights_progress;
  std::vector<std::atomic<TileProgress>> state_progress;
};

}  // namespace forebay
