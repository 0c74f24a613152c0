// A small store, a window over it, and an updater that adds 1 to every weight.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
inline constexpr int kNumBlocks = 6;
inline constexpr int kHead = kNumBlocks + 1;
inline constexpr int kNumLayers = kNumBlocks + 2;

// A large embedding, six blocks of two tiles, and an output layer that is small (tied: a norm) or
// large (untied).
inline Inventory ModelInventory(bool tied) {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed", {20'000}, 0, true);
  for (int block = 0; block < kNumBlocks; ++block) {
    inventory.BeginLayer("layers." + std::to_string(block));
    inventory.Add("layers." + std::to_string(block), {6000}, 0, true);
  }
  inventory.BeginLayer("head");
  inventory.Add("head", {tied ? 100 : 20'000}, 0, true);
  return inventory;
}

// The value of every weight of `layer` after `num_updates` updates.
inline float Expected(int layer, int64_t num_updates) {
  return 1000.0f * static_cast<float>(layer) + static_cast<float>(num_updates);
}

// Writes weights and state of a layer's tiles.
class LayerWriter {
 public:
  explicit LayerWriter(TensorStore* store)
      : store_(store),
        state_(store->tiles().state_area_bytes()),
        ops_(2 * store->tiles().tiles().size()),
        in_flight_(store->tiles().tiles().size()) {}

  const TileMap& tiles() const { return store_->tiles(); }
  void Start(int layer, std::span<std::byte> weights) {
    StartTiles(tiles().first_tile(layer), tiles().first_tile(layer + 1), weights);
  }
  absl::Status Await(int layer) {
    return AwaitTiles(tiles().first_tile(layer), tiles().first_tile(layer + 1));
  }
  // Tiles of one layer, whose weights these are.
  void StartTiles(int first_tile, int end_tile, std::span<std::byte> weights) {
    for (int i = first_tile; i < end_tile; ++i) {
      const Tile& tile = tiles().tiles()[i];
      store_->StartWriteWeights(i, weights.first(tiles().WeightBytes(tile)), ops_[2 * i]);
      weights = weights.subspan(tiles().WeightBytes(tile));
      const auto state = state_.first(tiles().state_area_bytes())
                             .subspan(tile.state_offset_bytes, tiles().StateBytes(tile));
      store_->StartWriteState(i, state, ops_[2 * i + 1]);
      in_flight_[i] = true;
    }
  }
  bool anything_in_flight() const {
    return std::ranges::find(in_flight_, true) != in_flight_.end();
  }
  absl::Status AwaitTiles(int first_tile, int end_tile) {
    absl::Status first_error;
    for (int i = first_tile; i < end_tile; ++i) {
      if (!in_flight_[i]) continue;
      in_flight_[i] = false;
      const absl::Status weights = store_->engine().Wait(ops_[2 * i]);
      const absl::Status state = store_->engine().Wait(ops_[2 * i + 1]);
      if (weights.ok()) store_->MarkWeightsWritten(i);
      if (state.ok()) store_->MarkStateWritten(i);
      first_error.Update(weights);
      first_error.Update(state);
    }
    return first_error;
  }

 private:
  TensorStore* store_;
  Scratch state_;
  std::vector<IoOp> ops_;
  std::vector<bool> in_flight_;  // by tile
};

// Adds 1 to every weight of a due layer, and insists on the order of calls that the swapper
// promises.
class AddOne : public TileUpdater {
 public:
  explicit AddOne(TensorStore* store)
      : writer_(store),
        due_(kNumLayers),
        in_write_back_(kNumLayers),
        wrote_(kNumLayers),
        num_updates_(kNumLayers) {}

  void MakeAllDue() {
    for (auto& due : due_) due = true;
  }
  void MakeDue(int layer) { due_[layer] = true; }
  int num_updates(int layer) const { return num_updates_[layer]; }
  int num_deferred() const { return num_deferred_; }
  bool fail_updates = false;

  bool UpdateIsDue(int layer) const override { return due_[layer]; }
  absl::Status UpdateLayer(int layer, std::span<std::byte> weights) override {
    EXPECT_TRUE(due_[layer]);
    EXPECT_FALSE(in_write_back_[layer]);
    in_write_back_[layer] = true;
    due_[layer] = false;
    wrote_[layer] = !fail_updates;
    if (fail_updates) return StorageError("no state");
    const std::span<float> values(reinterpret_cast<float*>(weights.data()), weights.size() / 4);
    for (float& value : values) value += 1.0f;
    ++num_updates_[layer];
    writer_.Start(layer, weights);
    return absl::OkStatus();
  }
  absl::Status UpdateTiles(int layer, int first_tile, int end_tile,
                           std::span<std::byte> weights) override {
    EXPECT_TRUE(due_[layer]);
    const TileMap& tiles = writer_.tiles();
    EXPECT_EQ(first_tile, num_tiles_updated_ + tiles.first_tile(layer));
    num_tiles_updated_ += end_tile - first_tile;
    if (fail_updates) return StorageError("no state");
    const std::span<float> values(reinterpret_cast<float*>(weights.data()), weights.size() / 4);
    for (float& value : values) value += 1.0f;
    writer_.StartTiles(first_tile, end_tile, weights);
    if (end_tile < tiles.first_tile(layer + 1)) return absl::OkStatus();
    due_[layer] = false;
    num_tiles_updated_ = 0;
    ++num_updates_[layer];
    return absl::OkStatus();
  }
  absl::Status AwaitWriteBackOfTiles(int first_tile, int end_tile) override {
    return writer_.AwaitTiles(first_tile, end_tile);
  }
  absl::Status WriteDeferred(int layer, std::span<std::byte>) override {
    EXPECT_FALSE(due_[layer]);
    ++num_deferred_;
    if (!in_write_back_[layer]) wrote_[layer] = false;
    in_write_back_[layer] = true;
    return absl::OkStatus();
  }
  absl::Status AwaitWriteBack(int layer) override {
    EXPECT_TRUE(in_write_back_[layer]);
    in_write_back_[layer] = false;
    return wrote_[layer] ? writer_.Await(layer) : absl::OkStatus();
  }
  bool anything_in_write_back() const {
    return writer_.anything_in_flight() ||
           std::ranges::find(in_write_back_, true) != in_write_back_.end();
  }

 private:
  LayerWriter writer_;
  std::vector<std::atomic<bool>> due_;
  std::vector<bool> in_write_back_;
  std::vector<bool> wrote_;
  std::vector<int> num_updates_;
  int num_tiles_updated_ = 0;  // of the layer that is updated piece by piece
  int num_deferred_ = 0;
};

class SwapperTest : public testing::Test {
 protected:
  void MakeStore(bool tied = true) {
    engine_ = CreateThreadsEngine({.num_threads = 2});
    auto store = TensorStore::Create(
        {.directories = {directory_}, .layout = Layout::kFp32, .tile_elems = kSmallTileElems},
        ModelInventory(tied), engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    LayerWriter writer(store_.get());
    for (int layer = 0; layer < kNumLayers; ++layer) {
      Scratch weights(store_->tiles().layer_elems(layer) * 4);
      const auto bytes = weights.first(store_->tiles().layer_elems(layer) * 4);
      const std::span<float> values(reinterpret_cast<float*>(bytes.data()), bytes.size() / 4);
      for (float& value : values) value = Expected(layer, 0);
      writer.Start(layer, bytes);
      ASSERT_TRUE(writer.Await(layer).ok());
    }
    ASSERT_TRUE(store_->Commit({0, Json::object()}).ok());
    updater_ = std::make_unique<AddOne>(store_.get());
    placement_.weights.assign(kNumLayers, Tier::kNvme);
  }

  // Opens the store again on an engine with faults.
  absl::Status Reopen(const FaultPlan& plan) {
    swapper_.reset();
    updater_.reset();
    store_.reset();
    engine_.reset();
    disk_ = std::make_unique<FaultyDisk>(plan);
    engine_ = CreateThreadsEngine({.num_threads = 2}, disk_.get());
    FOREBAY_ASSIGN_OR_RETURN(store_, TensorStore::Open({directory_}, engine_.get()));
    updater_ = std::make_unique<AddOne>(store_.get());
    return absl::OkStatus();
  }

  absl::Status MakeSwapper(int num_block_buffers = 3, int num_large_buffers = 1) {
    swapper_.reset();
    WindowOptions options = Options(num_block_buffers, num_large_buffers);
    options.piece_elems = piece_elems_;
    FOREBAY_ASSIGN_OR_RETURN(
        swapper_, Swapper::Create(options, placement_, store_.get(), updater_.get(), &budget_));
    return absl::OkStatus();
  }
  static WindowOptions Options(int num_block_buffers, int num_large_buffers) {
    return {.num_block_buffers = num_block_buffers,
            .num_large_buffers = num_large_buffers,
            .first_block_layer = 1,
            .last_block_layer = kNumBlocks};
  }

  // Acquires, checks and releases one layer.
  absl::Status Use(int layer, int64_t num_updates) {
    FOREBAY_ASSIGN_OR_RETURN(const auto bytes, swapper_->Acquire(layer));
    if (WeightPieces* const pieces = swapper_->PiecesOf(layer); pieces != nullptr) {
      EXPECT_TRUE(bytes.empty());
      const absl::Status status = UsePieces(*pieces, layer, num_updates);
      swapper_->Release(layer);
      return status;
    }
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), store_->tiles().layer_elems(layer) * 4);
    EXPECT_TRUE(AllAre(bytes, Expected(layer, num_updates)))
        << "layer " << layer << ", update " << num_updates;
    swapper_->Release(layer);
    return absl::OkStatus();
  }
  absl::Status UsePieces(WeightPieces& pieces, int layer, int64_t num_updates) {
    int64_t num_elems = 0;
    for (int piece = 0; piece < pieces.num_pieces(); ++piece) {
      FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, pieces.Get(piece));
      EXPECT_EQ(weights.first_elem, num_elems);
      EXPECT_TRUE(AllAre(weights.data, Expected(layer, num_updates)))
          << "layer " << layer << ", piece " << piece << ", update " << num_updates;
      num_elems += std::ssize(weights.data) / 4;
    }
    EXPECT_EQ(num_elems, store_->tiles().layer_elems(layer));
    return absl::OkStatus();
  }
  static bool AllAre(std::span<const std::byte> bytes, float expected) {
    const std::span<const float> values(reinterpret_cast<const float*>(bytes.data()),
                                        bytes.size() / 4);
    return std::ranges::all_of(values, [expected](float value) { return value == expected; });
  }
  absl::Status UseAll(const std::vector<int>& layers, int64_t num_updates) {
    for (const int layer : layers) FOREBAY_RETURN_IF_ERROR(Use(layer, num_updates));
    return absl::OkStatus();
  }
  absl::Status ExpectAndUse(const std::vector<int>& layers, int64_t num_updates) {
    swapper_->Expect(layers);
    return UseAll(layers, num_updates);
  }

  // Forward and backward after `num_updates` updates; with two leases where the output layer is
  // tied to the embedding.
  absl::Status Pass(int64_t num_updates, bool tied) {
    std::vector<int> order;
    for (int layer = 0; layer <= kHead; ++layer) order.push_back(layer);
    if (tied) order.push_back(0);
    for (int layer = kHead - (tied ? 1 : 0); layer >= 0; --layer) order.push_back(layer);
    swapper_->Expect(order);
    for (size_t i = 0; i < order.size(); ++i) {
      if (tied && order[i] == kHead) {
        FOREBAY_RETURN_IF_ERROR(swapper_->Acquire(kHead).status());
        FOREBAY_RETURN_IF_ERROR(Use(0, num_updates));
        swapper_->Release(kHead);
        ++i;
      } else {
        FOREBAY_RETURN_IF_ERROR(Use(order[i], num_updates));
      }
    }
    return absl::OkStatus();
  }

  // Trains from `first` committed updates to `last`: each pass applies the update of the step
  // before on its way in, and that step is committed behind it.
  absl::Status Train(int64_t first, int64_t last, bool tied) {
    for (int64_t step = first; step < last; ++step) {
      FOREBAY_RETURN_IF_ERROR(Pass(step, tied));
      if (step > first) FOREBAY_RETURN_IF_ERROR(ApplyAndCommit(step));
      updater_->MakeAllDue();
    }
    return ApplyAndCommit(last);
  }
  absl::Status ApplyAndCommit(int64_t step) {
    FOREBAY_RETURN_IF_ERROR(swapper_->ApplyAllUpdates());
    return store_->Commit({step, Json::object()});
  }

  // Reads every layer from the store's files, by a swapper without an updater.
  bool StoreHolds(int64_t num_updates) {
    auto reader = Swapper::Create(Options(2, 1), placement_, store_.get(), nullptr, &budget_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    bool all = true;
    for (int layer = 0; layer < kNumLayers; ++layer) {
      (*reader)->Expect(std::span(&layer, 1));
      const auto bytes = (*reader)->Acquire(layer);
      all = all && bytes.ok() && AllAre(*bytes, Expected(layer, num_updates));
      if (bytes.ok()) (*reader)->Release(layer);
    }
    return all;
  }

  MemoryBudget budget_{0};
  TemporaryFolder folder_;
  std::string directory_ = folder_.Path("swap");
  std::unique_ptr<FaultyDisk> disk_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<AddOne> updater_;
  Placement placement_;
  int64_t piece_elems_ = 0;  // of MakeSwapper
  std::unique_ptr<Swapper> swapper_;
};

}  // namespace forebay
