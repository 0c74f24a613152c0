#include "forebay/offload/create_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/offload/whole_tile.h"
#include "forebay/optimizer/tile_run.h"
#include "forebay/swap/store/transfer_buffer.h"

namespace forebay {
namespace {

// Puts `master` into the planes of a tile whose state is zero.
void FillTile(std::span<const float> master, const TileRun& run) {
  switch (run.weights) {
    case WeightFormat::kFp32:
      std::memcpy(run.weight, master.data(), master.size_bytes());
      return;
    case WeightFormat::kFp16: {
      std::ranges::copy(master, run.master);
      std::ranges::transform(master, static_cast<Fp16*>(run.weight), FloatToFp16);
      return;
    }
    case WeightFormat::kSplitBf16: {
      auto* w16 = static_cast<Bf16*>(run.weight);
      for (size_t i = 0; i < master.size(); ++i) {
        const SplitMaster split = Split(master[i]);
        w16[i] = split.w16;
        run.remainder[i] = split.r16;
      }
    }
  }
}

// Fills tiles with what they have of each tensor.
class TilesOfTensors {
 public:
  // `master`: as long as the longest tile.
  TilesOfTensors(TileMap tiles, Inventory inventory, TensorFiller fill, HostBuffer master)
      : tiles_(std::move(tiles)),
        inventory_(std::move(inventory)),
        fill_(std::move(fill)),
        master_(std::move(master)) {}

  absl::Status Fill(int index, std::span<std::byte> weights, std::span<std::byte> state) const {
    const Tile& tile = tiles_.tiles()[static_cast<size_t>(index)];
    const std::span<float> master = master_.As<float>().first(static_cast<size_t>(tile.num_elems));
    std::ranges::fill(master, 0.0f);
    for (const TensorSpec* tensor : TensorsInPlace(inventory_, tile.layer)) {
      const int64_t first = std::max(tensor->offset_elems, tile.first_elem);
      const int64_t until =
          std::min(tensor->offset_elems + tensor->num_elems, tile.first_elem + tile.num_elems);
      if (first >= until) continue;
      FOREBAY_RETURN_IF_ERROR(fill_(*tensor, first - tensor->offset_elems,
                                    master.subspan(static_cast<size_t>(first - tile.first_elem),
                                                   static_cast<size_t>(until - first))));
    }
    FillTile(master, RunOf(tiles_, tile, weights, state));
    return absl::OkStatus();
  }

 private:
  const TileMap tiles_;
  const Inventory inventory_;
  const TensorFiller fill_;
  const HostBuffer master_;
};

constexpr char kFirstValues[] = "first values";

}  // namespace

// ---- StoreFiller -------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<StoreFiller>> StoreFiller::Create(
    const StoreOptions& options, const Inventory& inventory, Engine* engine, MemoryBudget* budget,
    std::function<bool()> stop, TileFiller fill) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Create(options, inventory, engine));
  std::unique_ptr<StoreFiller> filler(
      new StoreFiller(std::move(store), budget, std::move(stop), std::move(fill)));
  FOREBAY_RETURN_IF_ERROR(filler->Allocate());
  return filler;
}

StoreFiller::StoreFiller(std::unique_ptr<TensorStore> store, MemoryBudget* budget,
                         std::function<bool()> stop, TileFiller fill)
    : store_(std::move(store)),
      directories_(store_->directories()),
      budget_(budget),
      stop_(std::move(stop)),
      fill_tile_(std::move(fill)) {}

StoreFiller::~StoreFiller() {
  if (store_ == nullptr) return;
  tile_ = {};  // it is registered with the store
  store_.reset();
  // A store that cannot be removed is named by the next start.
  TensorStore::Remove(directories_).status().IgnoreError();
}

absl::Status StoreFiller::Allocate() {
  const TileMap& tiles = store_->tiles();
  int64_t largest_bytes = 0;
  for (int layer = 0; layer < tiles.num_layers(); ++layer) {
    const bool is_raw = layer >= tiles.num_streamed_layers();
    if (!is_raw && fill_tile_) continue;
    largest_bytes = std::max(largest_bytes, tiles.layer_elems(layer) * (is_raw ? 1 : 4));
  }
  FOREBAY_ASSIGN_OR_RETURN(layer_, HostBuffer::Create(budget_, "import: one layer", largest_bytes));
  const int64_t tile_bytes = tiles.max_weight_bytes() + tiles.max_state_bytes();
  FOREBAY_ASSIGN_OR_RETURN(tile_, TransferBuffer::Create(store_.get(), budget_, "import: one tile",
                                                         tile_bytes, tile_bytes));
  std::ranges::fill(layer_.bytes(), std::byte{0});
  return absl::OkStatus();
}

absl::StatusOr<std::span<float>> StoreFiller::ValuesOf(int tensor) {
  const TensorSpec& spec = store_->inventory().tensors()[tensor];
  if (spec.raw) return UsageError(fmt::format("'{}' is a raw tensor, of bytes", spec.name));
  FOREBAY_RETURN_IF_ERROR(GoTo(spec.layer));
  return layer_.As<float>().subspan(spec.offset_elems, spec.num_elems);
}

absl::StatusOr<std::span<std::byte>> StoreFiller::BytesOf(int tensor) {
  const TensorSpec& spec = store_->inventory().tensors()[tensor];
  if (!spec.raw) return UsageError(fmt::format("'{}' is not a raw tensor", spec.name));
  FOREBAY_RETURN_IF_ERROR(GoTo(spec.layer));
  return layer_.bytes().subspan(spec.offset_elems, spec.num_elems);
}

// Writes the layers before `layer`.
absl::Status StoreFiller::GoTo(int layer) {
  if (layer < next_layer_) {
    return UsageError(fmt::format(
        "'{}' was filled already, and '{}' begun: layers are filled in their order",
        store_->inventory().layers()[layer].name, store_->inventory().layers()[next_layer_].name));
  }
  while (next_layer_ < layer) FOREBAY_RETURN_IF_ERROR(WriteLayer());
  return absl::OkStatus();
}

absl::Status StoreFiller::WriteLayer() {
  const TileMap& tiles = store_->tiles();
  for (int i = tiles.first_tile(next_layer_); i < tiles.first_tile(next_layer_ + 1); ++i) {
    if (stop_ && stop_()) return InterruptedError("stopped on request");
    FOREBAY_RETURN_IF_ERROR(WriteTile(i));
  }
  std::ranges::fill(layer_.bytes(), std::byte{0});
  ++next_layer_;
  return absl::OkStatus();
}

absl::Status StoreFiller::WriteTile(int index) {
  const TileMap& tiles = store_->tiles();
  const Tile& tile = tiles.tiles()[index];
  const auto weights = tile_.bytes().first(tiles.WeightBytes(tile));
  if (tile.raw) {
    std::memcpy(weights.data(), layer_.data() + tile.first_elem, weights.size());
    return WriteWholeTile(*store_, index, weights, {});
  }
  const auto state = tile_.bytes().subspan(weights.size(), tiles.StateBytes(tile));
  const StoreFiles files = store_->files();
  if (!files.weights && !files.state) return WriteWholeTile(*store_, index, weights, state);
  std::ranges::fill(state, std::byte{0});
  if (fill_tile_) {
    std::ranges::fill(weights, std::byte{0});
    FOREBAY_RETURN_IF_ERROR(fill_tile_(index, weights, state));
    return WriteWholeTile(*store_, index, weights, state);
  }
  FillTile(layer_.As<float>().subspan(tile.first_elem, tile.num_elems),
           RunOf(tiles, tile, weights, state));
  return WriteWholeTile(*store_, index, weights, state);
}

absl::StatusOr<std::unique_ptr<TensorStore>> StoreFiller::Finish(
    const CommitInfo& first_commit, const std::function<void(double)>& on_space) {
  FOREBAY_RETURN_IF_ERROR(GoTo(store_->tiles().num_layers()));
  FOREBAY_RETURN_IF_ERROR(store_->WriteSpareSpace(tile_.bytes(), stop_, on_space));
  FOREBAY_RETURN_IF_ERROR(store_->Commit(first_commit));
  tile_ = {};
  return std::move(store_);
}

// ---- The whole store ---------------------------------------------------------------------------

StoreOptions StoreOptionsOf(const OffloadPlan& plan, std::vector<std::string> directories) {
  StoreOptions store;
  store.directories = std::move(directories);
  store.stripe_weights = plan.tiles.stripe_weights();
  store.layout = plan.tiles.layout();
  store.moment_set = plan.tiles.moment_set();
  store.tile_elems = plan.tiles.tile_elems();
  store.num_slots = plan.num_slots;
  store.scratch_bytes = plan.ScratchBytes();
  store.files = plan.store_files;
  return store;
}

int64_t FirstValuesBytes(const TileMap& tiles) {
  return HostBuffer::ChargedBytes(tiles.max_tile_elems() * 4) +
         HostBuffer::ChargedBytes(std::max(tiles.max_weight_bytes(), tiles.max_state_bytes()));
}

absl::StatusOr<TileFiller> FirstValuesOf(TensorFiller fill, const Inventory& inventory,
                                         const TileMap& tiles, MemoryBudget* budget) {
  FOREBAY_ASSIGN_OR_RETURN(HostBuffer master,
                           HostBuffer::Create(budget, kFirstValues, tiles.max_tile_elems() * 4));
  const auto whole =
      std::make_shared<const TilesOfTensors>(tiles, inventory, std::move(fill), std::move(master));
  return FirstValuesOf(
      [whole](int tile, std::span<std::byte> weights, std::span<std::byte> state) {
        return whole->Fill(tile, weights, state);
      },
      tiles, budget);
}

absl::StatusOr<TileFiller> FirstValuesOf(TileFiller whole, const TileMap& tiles,
                                         MemoryBudget* budget) {
  FOREBAY_ASSIGN_OR_RETURN(
      HostBuffer memory,
      HostBuffer::Create(budget, kFirstValues,
                         std::max(tiles.max_weight_bytes(), tiles.max_state_bytes())));
  const auto other = std::make_shared<const HostBuffer>(std::move(memory));
  return [whole = std::move(whole), tiles, other](int index, std::span<std::byte> weights,
                                                  std::span<std::byte> state) {
    const Tile& tile = tiles.tiles()[static_cast<size_t>(index)];
    const bool wants_state = weights.empty();
    const auto rest = other->bytes().first(
        static_cast<size_t>(wants_state ? tiles.WeightBytes(tile) : tiles.StateBytes(tile)));
    std::ranges::fill(rest, std::byte{0});
    return wants_state ? whole(index, rest, state) : whole(index, weights, rest);
  };
}

namespace {

absl::StatusOr<std::unique_ptr<TensorStore>> FillAll(StoreFiller& filler,
                                                     const Inventory& inventory,
                                                     const RawFiller& fill_raw,
                                                     const CommitInfo& first_commit,
                                                     const std::function<void(double)>& on_space) {
  for (int i = 0; i < static_cast<int>(inventory.tensors().size()); ++i) {
    const TensorSpec& tensor = inventory.tensors()[i];
    if (!tensor.raw || !fill_raw) continue;
    FOREBAY_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, filler.BytesOf(i));
    FOREBAY_RETURN_IF_ERROR(fill_raw(tensor, bytes));
  }
  return filler.Finish(first_commit, on_space);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorStore>> CreateFilledStore(
    const StoreOptions& options, const Inventory& inventory, const TensorFiller& fill,
    const CommitInfo& first_commit, Engine* engine, MemoryBudget* budget,
    const std::function<bool()>& stop, const std::function<void(double)>& on_space,
    const RawFiller& fill_raw) {
  std::optional<TilesOfTensors> tiles;
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<StoreFiller> filler,
      StoreFiller::Create(options, inventory, engine, budget, stop,
                          [&](int tile, std::span<std::byte> weights, std::span<std::byte> state) {
                            return tiles->Fill(tile, weights, state);
                          }));
  FOREBAY_ASSIGN_OR_RETURN(
      HostBuffer master,
      HostBuffer::Create(budget, "import: one tile in fp32", filler->tiles().max_tile_elems() * 4));
  tiles.emplace(filler->tiles(), inventory, fill, std::move(master));
  absl::StatusOr<std::unique_ptr<TensorStore>> store =
      FillAll(*filler, inventory, fill_raw, first_commit, on_space);
  if (store.ok()) return store;
  return Annotate(store.status(),
                  fmt::format("filling the store in '{}'", fmt::join(options.directories, "', '")));
}

absl::StatusOr<std::unique_ptr<TensorStore>> CreateCopiedStore(
    const StoreOptions& options, const Inventory& inventory, TileFiller fill,
    const CommitInfo& first_commit, Engine* engine, MemoryBudget* budget,
    const std::function<bool()>& stop, const std::function<void(double)>& on_space) {
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<StoreFiller> filler,
      StoreFiller::Create(options, inventory, engine, budget, stop, std::move(fill)));
  return filler->Finish(first_commit, on_space);
}

}  // namespace forebay
