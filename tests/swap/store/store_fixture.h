// A small store with recognisable contents, for the tests of this folder.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/round_up.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {

// Four layers: a large "embed", two blocks of several tensors, a small "head"; with tiles of 4096
// elements 5 + 2 * 2 + 1.
inline Inventory SmallInventory() {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed.weight", {130, 150}, 1, true);
  for (int block = 0; block < 2; ++block) {
    const std::string prefix = "layers." + std::to_string(block);
    inventory.BeginLayer(prefix);
    inventory.Add(prefix + ".norm", {37}, 2, false);
    inventory.Add(prefix + ".up", {50, 64}, 3, true);
    inventory.Add(prefix + ".down", {64, 41}, 4, true);
  }
  inventory.BeginLayer("head");
  inventory.Add("head.norm", {1700}, 2, false);
  return inventory;
}
inline constexpr int64_t kSmallTileElems = 4096;

// With bytes of all sizes: in tiles of 8192 bytes one layer of three and one of a single tile.
inline Inventory WithRawLayers(Inventory inventory) {
  inventory.BeginRawLayer("buffers");
  inventory.AddRaw("flag", 1);
  inventory.AddRaw("odd", 3);
  inventory.AddRaw("mask", 4097);
  inventory.AddRaw("history", 16000);
  inventory.BeginRawLayer("counters");
  inventory.AddRaw("num_batches", 8);
  inventory.AddRaw("mean", 36);
  return inventory;
}

// As gtest takes names.
inline std::string TestNameOf(Layout layout) {
  std::string name(NameOf(layout));
  std::ranges::replace(name, '-', '_');
  return name;
}

// Reads every plane of every tensor, and every master. The first error.
inline absl::Status ReadTensors(TensorStore& store) {
  absl::Status status;
  const TileMap& tiles = store.tiles();
  for (const TensorSpec& tensor : store.inventory().tensors()) {
    std::vector<float> values(tensor.raw ? 0 : static_cast<size_t>(tensor.num_elems));
    if (!tensor.raw) status.Update(store.ReadTensor(tensor, TensorPlane::kMaster, 0, values));
    const Tile& tile = tiles.tiles()[tiles.TileAt(tensor.layer, tensor.offset_elems)];
    const TilePlanes& planes = tiles.PlanesOf(tile);
    for (int plane = 0; plane < planes.size(); ++plane) {
      const int64_t elems =
          planes.IsScale(plane) ? RoundUp(tensor.num_elems, kMomentBlockElems) : tensor.num_elems;
      std::vector<std::byte> bytes(static_cast<size_t>(planes.Bytes(plane, elems)));
      status.Update(store.ReadTilePlane(tensor, planes.kind(plane), 0, tensor.num_elems, bytes));
    }
  }
  return status;
}

// Bytes that depend on everything that must not be mixed up.
inline void FillPattern(std::span<std::byte> bytes, int64_t step, int tile, bool state) {
  CounterRng(static_cast<uint64_t>(step), static_cast<uint64_t>(2 * tile + (state ? 1 : 0)))
      .Fill(bytes);
}

// Aligned scratch memory of a test.
class Scratch {
 public:
  explicit Scratch(int64_t size_bytes) {
    auto buffer = HostBuffer::Create(&budget_, "test", size_bytes);
    FOREBAY_CHECK(buffer.ok());
    buffer_ = *std::move(buffer);
  }
  std::span<std::byte> first(int64_t size_bytes) { return buffer_.bytes().first(size_bytes); }

 private:
  MemoryBudget budget_{0};
  HostBuffer buffer_;
};

// Writes all tiles of `step`.
inline absl::Status WriteTiles(TensorStore& store, int64_t step) {
  FOREBAY_RETURN_IF_ERROR(store.BeginWriting());
  Scratch scratch(store.tiles().max_state_bytes());
  IoOp op;
  for (int i = 0; i < store.tiles().num_tiles(); ++i) {
    const Tile& tile = store.tiles().tiles()[i];
    const auto weights = scratch.first(store.tiles().WeightBytes(tile));
    FillPattern(weights, step, i, false);
    store.StartWriteWeights(i, weights, op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
    store.MarkWeightsWritten(i);
    const auto state = scratch.first(store.tiles().StateBytes(tile));
    FillPattern(state, step, i, true);
    store.StartWriteState(i, state, op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
    store.MarkStateWritten(i);
  }
  return absl::OkStatus();
}

// The step that wrote the tiles of a commit.
inline int64_t StepOfTiles(const CommitInfo& committed) {
  return committed.trainer.value("tiles_of", committed.step);
}

// And commits them.
inline absl::Status WriteStep(TensorStore& store, int64_t step,
                              const std::function<absl::Status()>& before_record = {}) {
  FOREBAY_RETURN_IF_ERROR(WriteTiles(store, step));
  return store.Commit({step, Json{{"tokens_seen", step * 1000}}}, before_record);
}

// Commits a step that changes no tile.
inline absl::Status SkipStep(TensorStore& store, int64_t step,
                             const std::function<absl::Status()>& before_record = {}) {
  return store.CommitSkipped({step, Json{{"tiles_of", StepOfTiles(store.committed())}}},
                             before_record);
}

// Whether every tile holds `step` and nothing else.
inline bool HoldsStep(TensorStore& store, int64_t step) {
  Scratch read(store.tiles().max_state_bytes());
  Scratch expected(store.tiles().max_state_bytes());
  IoOp op;
  for (int i = 0; i < store.tiles().num_tiles(); ++i) {
    const Tile& tile = store.tiles().tiles()[i];
    for (const bool state : {false, true}) {
      const int64_t bytes =
          state ? store.tiles().StateBytes(tile) : store.tiles().WeightBytes(tile);
      if (state) {
        store.StartReadState(i, read.first(bytes), IoClass::kDemand, op);
      } else {
        store.StartReadWeights(i, read.first(bytes), IoClass::kDemand, op);
      }
      FillPattern(expected.first(bytes), step, i, state);
      if (!store.engine().Wait(op).ok()) return false;
      const auto got = read.first(bytes);
      if (!(state ? store.VerifyState(i, got) : store.VerifyWeights(i, got)).ok()) return false;
      if (std::memcmp(read.first(bytes).data(), expected.first(bytes).data(), bytes) != 0)
        return false;
    }
  }
  return true;
}

// A store in a temporary folder.
class StoreFixture : public testing::Test {
 protected:
  std::unique_ptr<TensorStore> MustOpen() {
    auto store = TensorStore::Open({directory_}, engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::Status OpenError() { return TensorStore::Open({directory_}, engine_.get()).status(); }
  std::string File(const std::string& name) const { return JoinPath(directory_, name); }

  TemporaryFolder folder_;
  std::string directory_ = folder_.Path("swap");
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2});
};

}  // namespace forebay
