// Makes the store of a plan from weights that come layer by layer: import of a checkpoint, and
// random initialisation. Never holds more than one layer, and where pieces can be asked for one
// tile.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/offload/plan.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"

namespace forebay {

// The store that `plan` is for, in `directories`; who and where else are the caller's.
StoreOptions StoreOptionsOf(const OffloadPlan& plan, std::vector<std::string> directories);

// A new store that is filled tensor by tensor: layers in their order, the tensors of one in any.
// Holds one layer at a time, or the raw ones alone where tiles are filled by a TileFiller from the
// beginning. Tensors that are not given are zeros, as all moments are. What was
// made is removed again unless Finish succeeds. Used by one thread at a time.
class StoreFiller {
 public:
  // `stop` (may be empty) is polled between tiles; true ends with InterruptedError. `fill`: as
  // FillTilesBy; may be empty. `engine` and `budget` outlive this and the store. The errors of
  // TensorStore::Create, and OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<StoreFiller>> Create(const StoreOptions& options,
                                                             const Inventory& inventory,
                                                             Engine* engine, MemoryBudget* budget,
                                                             std::function<bool()> stop = {},
                                                             TileFiller fill = {});
  ~StoreFiller();
  StoreFiller(const StoreFiller&) = delete;
  StoreFiller& operator=(const StoreFiller&) = delete;

  // Where the master weights of a tensor go (by its index in the inventory; fp32, its elements in
  // order; zeros before), until the next call. UsageError: a raw tensor, or one of a layer before
  // that of the last call. StorageError of what was filled before.
  absl::StatusOr<std::span<float>> ValuesOf(int tensor);
  // The same of a raw tensor.
  absl::StatusOr<std::span<std::byte>> BytesOf(int tensor);
  const TileMap& tiles() const { return store_->tiles(); }
  // Tiles are filled by `fill`, and not by tensors, but for those of raw layers.
  void FillTilesBy(TileFiller fill) { fill_tile_ = std::move(fill); }
  // Writes what is left, and the space that the first steps will write to, and publishes
  // `first_commit`. `on_space` (may be empty): as `progress` of TensorStore::WriteSpareSpace.
  absl::StatusOr<std::unique_ptr<TensorStore>> Finish(
      const CommitInfo& first_commit, const std::function<void(double)>& on_space = {});

 private:
  StoreFiller(std::unique_ptr<TensorStore> store, MemoryBudget* budget, std::function<bool()> stop,
              TileFiller fill);
  absl::Status Allocate();
  absl::Status GoTo(int layer);
  absl::Status WriteLayer();
  absl::Status WriteTile(int index);

  std::unique_ptr<TensorStore> store_;
  const std::vector<std::string> directories_;
  MemoryBudget* const budget_;
  const std::function<bool()> stop_;
  HostBuffer layer_;  // its master weights, or bytes; none where no layer needs it
  TransferBuffer tile_;
  int next_layer_ = 0;    // the one that is being filled
  TileFiller fill_tile_;  // empty: by tensors
};

// Writes some master weights of a tensor into `values` (fp32): its elements from `first_elem` on.
using TensorFiller = std::function<absl::Status(const TensorSpec& tensor, int64_t first_elem,
                                                std::span<float> values)>;

// All bytes of a raw tensor, which are zero before.
using RawFiller = std::function<absl::Status(const TensorSpec& tensor, std::span<std::byte> bytes)>;

// All of that with the weights by `fill`, from tile to tile in their order, and raw tensors by
// `fill_raw` (may be empty).
absl::StatusOr<std::unique_ptr<TensorStore>> CreateFilledStore(
    const StoreOptions& options, const Inventory& inventory, const TensorFiller& fill,
    const CommitInfo& first_commit, Engine* engine, MemoryBudget* budget,
    const std::function<bool()>& stop = {}, const std::function<void(double)>& on_space = {},
    const RawFiller& fill_raw = {});

// For StoreOptions::first_values, of a store with these tiles: by `fill`, or by what fills whole
// tiles. They take copies of all but `budget`. OutOfMemoryError.
absl::StatusOr<TileFiller> FirstValuesOf(TensorFiller fill, const Inventory& inventory,
                                         const TileMap& tiles, MemoryBudget* budget);
absl::StatusOr<TileFiller> FirstValuesOf(TileFiller whole, const TileMap& tiles,
                                         MemoryBudget* budget);
// The most that either of them charges.
int64_t FirstValuesBytes(const TileMap& tiles);

// All of that with tiles by `fill`: a copy of another store's state.
absl::StatusOr<std::unique_ptr<TensorStore>> CreateCopiedStore(
    const StoreOptions& options, const Inventory& inventory, TileFiller fill,
    const CommitInfo& first_commit, Engine* engine, MemoryBudget* budget,
    const std::function<bool()>& stop = {}, const std::function<void(double)>& on_space = {});

}  // namespace forebay
