#include "forebay/offload/create_store.h"

#include <algorithm>
#include <cstring>
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

// Buffers of one layer and one tile, and the walk over them.
class StoreFiller {
 public:
  StoreFiller(TensorStore* store, const TensorFiller& fill, const RawFiller& fill_raw,
              const std::function<bool()>& stop)
      : store_(store), fill_(fill), fill_raw_(fill_raw), stop_(stop) {}

  absl::Status Run(MemoryBudget* budget, const std::function<void(double)>& on_space) {
    const TileMap& tiles = store_->tiles();
    int64_t largest_layer = 0;
    for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
      largest_layer = std::max(largest_layer, tiles.layer_elems(layer));
    }
    FOREBAY_ASSIGN_OR_RETURN(master_,
                             HostBuffer::Create(budget, "import: one layer", largest_layer * 4));
    const int64_t tile_bytes = tiles.max_weight_bytes() + tiles.max_state_bytes();
    FOREBAY_ASSIGN_OR_RETURN(
        tile_, TransferBuffer::Create(store_, budget, "import: one tile", tile_bytes, tile_bytes));
    for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
      FOREBAY_RETURN_IF_ERROR(FillLayer(layer));
    }
    for (int layer = tiles.num_streamed_layers(); layer < tiles.num_layers(); ++layer) {
      FOREBAY_RETURN_IF_ERROR(FillRawLayer(layer, budget));
    }
    return store_->WriteSpareSpace(tile_.bytes(), stop_, on_space);
  }

 private:
  absl::Status FillLayer(int layer) {
    const LayerSpec& spec = store_->inventory().layers()[layer];
    const std::span<float> master = master_.As<float>().first(spec.num_elems);
    std::fill(master.begin(), master.end(), 0.0f);
    for (int i = 0; i < spec.num_tensors; ++i) {
      const TensorSpec& tensor = store_->inventory().tensors()[spec.first_tensor + i];
      FOREBAY_RETURN_IF_ERROR(fill_(tensor, master.subspan(tensor.offset_elems, tensor.num_elems)));
    }
    for (int tile = store_->tiles().first_tile(layer); tile < store_->tiles().first_tile(layer + 1);
         ++tile) {
      if (stop_ && stop_()) return InterruptedError("stopped on request");
      FOREBAY_RETURN_IF_ERROR(WriteTile(tile, master));
    }
    return absl::OkStatus();
  }

  absl::Status FillRawLayer(int layer, MemoryBudget* budget) {
    const TileMap& tiles = store_->tiles();
    const LayerSpec& spec = store_->inventory().layers()[layer];
    FOREBAY_ASSIGN_OR_RETURN(const HostBuffer bytes,
                             HostBuffer::Create(budget, "import: one raw layer", spec.num_elems));
    for (int i = 0; fill_raw_ && i < spec.num_tensors; ++i) {
      const TensorSpec& tensor = store_->inventory().tensors()[spec.first_tensor + i];
      FOREBAY_RETURN_IF_ERROR(
          fill_raw_(tensor, bytes.bytes().subspan(tensor.offset_elems, tensor.num_elems)));
    }
    for (int i = tiles.first_tile(layer); i < tiles.first_tile(layer + 1); ++i) {
      const Tile& tile = tiles.tiles()[i];
      const auto of_tile = tile_.bytes().first(tiles.WeightBytes(tile));
      std::memcpy(of_tile.data(), bytes.data() + tile.first_elem, of_tile.size());
      FOREBAY_RETURN_IF_ERROR(WriteWholeTile(*store_, i, of_tile, {}));
    }
    return absl::OkStatus();
  }

  absl::Status WriteTile(int index, std::span<const float> master) {
    const TileMap& tiles = store_->tiles();
    const Tile& tile = tiles.tiles()[index];
    const auto weights = tile_.bytes().first(tiles.WeightBytes(tile));
    const auto state = tile_.bytes().subspan(weights.size(), tiles.StateBytes(tile));
    std::memset(state.data(), 0, state.size());
    FillTile(master.subspan(tile.first_elem, tile.num_elems), RunOf(tiles, tile, weights, state));
    return WriteWholeTile(*store_, index, weights, state);
  }

  TensorStore* const store_;
  const TensorFiller& fill_;
  const RawFiller& fill_raw_;
  const std::function<bool()>& stop_;
  HostBuffer master_;
  TransferBuffer tile_;
};

}  // namespace

StoreOptions StoreOptionsOf(const OffloadPlan& plan, std::vector<std::string> directories) {
  StoreOptions store;
  store.directories = std::move(directories);
  store.stripe_weights = plan.tiles.stripe_weights();
  store.layout = plan.tiles.layout();
  store.moment_set = plan.tiles.moment_set();
  store.tile_elems = plan.tiles.tile_elems();
  store.num_slots = plan.num_slots;
  store.gradient_area_bytes = plan.gradient_area_bytes;
  store.has_intents = plan.gradient_area == GradientArea::kAll;
  return store;
}

absl::StatusOr<std::unique_ptr<TensorStore>> CreateFilledStore(
    const StoreOptions& options, const Inventory& inventory, const TensorFiller& fill,
    const CommitInfo& first_commit, Engine* engine, MemoryBudget* budget,
    const std::function<bool()>& stop, const std::function<void(double)>& on_space,
    const RawFiller& fill_raw) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Create(options, inventory, engine));
  absl::Status status = StoreFiller(store.get(), fill, fill_raw, stop).Run(budget, on_space);
  if (status.ok()) status = store->Commit(first_commit);
  if (status.ok()) return store;
  store.reset();
  // The first error is the one to report; a store left behind is named by the next start.
  TensorStore::Remove(options.directories).status().IgnoreError();
  return Annotate(status,
                  fmt::format("filling the store in '{}'", fmt::join(options.directories, "', '")));
}

}  // namespace forebay
