// A small model in a store, its gradients, and the same training in memory as the judge.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/offloaded_adamw.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/tests/optimizer/run_vectors.h"
#include "gtest/gtest.h"

namespace forebay {

// Four layers that mix decayed and undecayed tensors with padding between and behind them. The
// large one has 10 tiles of 2048 elements, 4 of 6144 or 1 of more.
inline Inventory OptimizerInventory() {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed.weight", {130, 150}, 1, true);
  for (int block = 0; block < 2; ++block) {
    const std::string prefix = "layers." + std::to_string(block);
    inventory.BeginLayer(prefix);
    inventory.Add(prefix + ".norm", {37}, 2, false);
    inventory.Add(prefix + ".up", {50, 64}, 3, true);
    inventory.Add(prefix + ".down", {64, 41}, 4, true);
    inventory.Add(prefix + ".bias", {64}, 5, false);
  }
  inventory.BeginLayer("head");
  inventory.Add("head.norm", {1700}, 2, false);
  return inventory;
}

inline constexpr OptimizerConfig kTestAdamW = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
inline constexpr double kTestWeightDecay = 0.1;

// As a trainer would with --clip=1.
inline UpdateScalars ScalarsOfStep(int64_t step, double gradient_norm) {
  return {.step = step,
          .lr = 1e-3 / static_cast<double>(step),
          .gradient_scale = std::min(1.0, 1.0 / (gradient_norm + 1e-6))};
}

// What backward would hand over for `layer`: zero in the padding, else of sizes from 1e-8 to 1e-1.
inline std::vector<float> GradientOf(const Inventory& inventory, int layer, int64_t step) {
  const LayerSpec& spec = inventory.layers()[layer];
  std::vector<float> gradient(spec.num_elems);
  const CounterRng rng(static_cast<uint64_t>(step), static_cast<uint64_t>(layer));
  for (int i = 0; i < spec.num_tensors; ++i) {
    const TensorSpec& tensor = inventory.tensors()[spec.first_tensor + i];
    for (int64_t j = tensor.offset_elems; j < tensor.offset_elems + tensor.num_elems; ++j) {
      gradient[j] = static_cast<float>(rng.Normal(j) * std::pow(10.0, -1 - j % 8));
    }
  }
  return gradient;
}

// AdamW over whole layers in memory, with the reference kernels: no tiles, tiers or threads.
class InMemoryAdamW {
 public:
  InMemoryAdamW(Layout layout, bool gradient_is_bf16) : inventory_(OptimizerInventory()) {
    const CounterRng rng(/*seed=*/1);
    for (const LayerSpec& spec : inventory_.layers()) {
      layers_.emplace_back(layout, gradient_is_bf16, spec.num_elems);
    }
    for (const TensorSpec& tensor : inventory_.tensors()) {
      for (int64_t i = tensor.offset_elems; i < tensor.offset_elems + tensor.num_elems; ++i) {
        layers_[tensor.layer].SetMaster(i, static_cast<float>(0.02 * rng.Normal(i)));
      }
    }
  }

  // Returns the norm of the gradients.
  double Step(int64_t step) {
    double sum = 0;
    for (int layer = 0; layer < inventory_.num_layers(); ++layer) {
      sum += HandOver(layers_[layer], GradientOf(inventory_, layer, step));
    }
    const double norm = std::sqrt(sum);
    for (const TensorSpec& tensor : inventory_.tensors()) {
      UpdateRunRef(kTestAdamW, ScalarsOfStep(step, norm),
                   layers_[tensor.layer].Run(tensor.offset_elems, tensor.num_elems,
                                             tensor.decay ? kTestWeightDecay : 0.0));
    }
    return norm;
  }

  const Inventory& inventory() const { return inventory_; }
  RunVectors& layer(int index) { return layers_[index]; }

 private:
  static double HandOver(RunVectors& vectors, const std::vector<float>& gradient) {
    double sum = 0;
    for (int64_t i = 0; i < vectors.size(); i += kNormBlockElems) {
      sum += vectors.gradient_is_bf16
                 ? RoundAndSumSquaresRef(&gradient[i], kNormBlockElems, &vectors.gradient_bf16[i])
                 : CopyAndSumSquaresRef(&gradient[i], kNormBlockElems, &vectors.gradient_fp32[i]);
    }
    return sum;
  }

  Inventory inventory_;
  std::vector<RunVectors> layers_;
};

// Writes the starting values of `start` to a new store and commits them as step 0.
inline absl::Status WriteStartingPoint(TensorStore& store, InMemoryAdamW& start) {
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(const HostBuffer buffer,
                           HostBuffer::Create(&budget, "test", store.tiles().max_state_bytes()));
  IoOp op;
  for (int i = 0; i < store.tiles().num_tiles(); ++i) {
    const Tile& tile = store.tiles().tiles()[i];
    const TileRun values = start.layer(tile.layer).Run(tile.first_elem, tile.num_elems, 0);
    const auto weights = buffer.bytes().first(store.tiles().WeightBytes(tile));
    std::memcpy(weights.data(), values.weight, weights.size());
    store.StartWriteWeights(i, weights, op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
    store.MarkWeightsWritten(i);
    const auto state = buffer.bytes().first(store.tiles().StateBytes(tile));
    const StatePlanes planes = PlanesOf(store.tiles().layout(), tile.num_elems);
    std::memset(state.data(), 0, state.size());
    if (values.remainder != nullptr) {
      std::memcpy(state.data() + planes.remainder, values.remainder, 2 * tile.num_elems);
    }
    store.StartWriteState(i, state, op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
    store.MarkStateWritten(i);
  }
  return store.Commit({0, Json::object()});
}

// Every committed bit, padding included, against memory.
inline void ExpectStoreHolds(TensorStore& store, InMemoryAdamW& expected) {
  MemoryBudget budget(0);
  auto buffer = HostBuffer::Create(&budget, "test", store.tiles().max_state_bytes());
  ASSERT_TRUE(buffer.ok());
  IoOp op;
  for (int i = 0; i < store.tiles().num_tiles(); ++i) {
    SCOPED_TRACE(testing::Message() << "tile " << i);
    const Tile& tile = store.tiles().tiles()[i];
    const TileRun values = expected.layer(tile.layer).Run(tile.first_elem, tile.num_elems, 0);
    const auto weights = buffer->bytes().first(store.tiles().WeightBytes(tile));
    store.StartReadWeights(i, weights, IoClass::kDemandRead, op);
    ASSERT_TRUE(store.engine().Wait(op).ok());
    ASSERT_EQ(std::memcmp(weights.data(), values.weight, weights.size()), 0);
    const auto state = buffer->bytes().first(store.tiles().StateBytes(tile));
    store.StartReadState(i, state, IoClass::kDemandRead, op);
    ASSERT_TRUE(store.engine().Wait(op).ok());
    const StatePlanes planes = PlanesOf(store.tiles().layout(), tile.num_elems);
    if (values.remainder != nullptr) {
      ASSERT_EQ(std::memcmp(state.data() + planes.remainder, values.remainder, 2 * tile.num_elems),
                0);
    }
    ASSERT_EQ(std::memcmp(state.data() + planes.m, values.m, 4 * tile.num_elems), 0);
    ASSERT_EQ(std::memcmp(state.data() + planes.v, values.v, 4 * tile.num_elems), 0);
  }
}

enum class Tiers : uint8_t { kHost, kNvme, kMixed };

inline Tier TierAt(Tiers tiers, int index) {
  if (tiers == Tiers::kMixed) return index % 2 == 0 ? Tier::kNvme : Tier::kHost;
  return tiers == Tiers::kHost ? Tier::kHost : Tier::kNvme;
}

inline Placement PlacementOf(const TileMap& tiles, Tiers weights, Tiers state, Tiers gradients) {
  Placement placement;
  const int num_layers = tiles.tiles().back().layer + 1;
  for (int i = 0; i < tiles.num_tiles(); ++i) placement.state.push_back(TierAt(state, i));
  for (int i = 0; i < num_layers; ++i) placement.weights.push_back(TierAt(weights, i));
  for (int i = 0; i < num_layers; ++i) placement.gradients.push_back(TierAt(gradients, i));
  return placement;
}

// One process' work on a store: engine, store, optimizer, and weights that stand in for the
// swapper.
class OffloadedRun {
 public:
  struct Options {
    Layout layout = Layout::kBf16;
    bool gradient_is_bf16 = true;
    int64_t tile_elems = 6144;
    Tiers state = Tiers::kNvme;
    Tiers gradients = Tiers::kHost;
    int num_threads = 1;
    int num_io_threads = 1;
    int num_staging_tiles = 4;
    Tiers weights = Tiers::kNvme;
    bool io_uring = false;  // instead of threads
  };

  // Creates the store in `folder` unless one is there. `disk`: nullptr is the real one.
  static absl::StatusOr<std::unique_ptr<OffloadedRun>> Start(const Options& options,
                                                             const std::string& folder,
                                                             DiskCalls* disk = nullptr) {
    auto run = std::make_unique<OffloadedRun>();
    run->options_ = options;
    const EngineOptions engine{.num_threads = options.num_io_threads};
    if (options.io_uring) {
      FOREBAY_ASSIGN_OR_RETURN(run->engine_, CreateIoUringEngine(engine));
    } else {
      run->engine_ =
          disk == nullptr ? CreateThreadsEngine(engine) : CreateThreadsEngine(engine, disk);
    }
    FOREBAY_RETURN_IF_ERROR(run->OpenStore(folder));
    OffloadedAdamWOptions adamw;
    adamw.rule = kTestAdamW;
    adamw.weight_decay = kTestWeightDecay;
    adamw.gradient_is_bf16 = options.gradient_is_bf16;
    adamw.num_threads = options.num_threads;
    adamw.num_staging_tiles = options.num_staging_tiles;
    run->placement_ =
        PlacementOf(run->store().tiles(), options.weights, options.state, options.gradients);
    // Not a byte more than what is announced.
    FOREBAY_RETURN_IF_ERROR(run->store().EnsureGradientArea(
        OffloadedAdamW::GradientAreaBytes(adamw, run->placement_, run->store().tiles())));
    FOREBAY_ASSIGN_OR_RETURN(
        run->optimizer_,
        OffloadedAdamW::Create(adamw, run->placement_, run->store_.get(), &run->budget_));
    const int64_t area = run->store().tiles().weight_area_bytes();
    FOREBAY_ASSIGN_OR_RETURN(run->weights_, HostBuffer::Create(&run->budget_, "weights", area));
    return run;
  }

  absl::Status OpenStore(const std::string& folder) {
    const std::string path = JoinPath(folder, "store");
    if (FileExists(path)) {
      FOREBAY_ASSIGN_OR_RETURN(store_, TensorStore::Open({path}, engine_.get()));
      return absl::OkStatus();
    }
    InMemoryAdamW start(options_.layout, options_.gradient_is_bf16);
    StoreOptions store_options;
    store_options.directories = {path};
    store_options.layout = options_.layout;
    store_options.tile_elems = options_.tile_elems;
    FOREBAY_ASSIGN_OR_RETURN(store_,
                             TensorStore::Create(store_options, start.inventory(), engine_.get()));
    return WriteStartingPoint(*store_, start);
  }

  absl::StatusOr<GradientStats> Backward(int64_t step) {
    for (int layer = num_layers() - 1; layer >= 0; --layer) {
      const std::vector<float> gradient = GradientOf(store().inventory(), layer, step);
      FOREBAY_RETURN_IF_ERROR(optimizer_->Hand(layer, gradient, pool_));
    }
    return optimizer_->FinishBackward();
  }

  // What the swapper does: reads the weights, has them updated and waits until the buffer is free.
  absl::Status UpdateLayer(int layer) {
    const TileMap& tiles = store().tiles();
    const int first = tiles.first_tile(layer);
    const auto weights =
        weights_.bytes().subspan(tiles.tiles()[first].weight_offset_bytes,
                                 tiles.layer_elems(layer) * WeightBytesPerElem(tiles.layout()));
    IoOp op;
    for (int i = first; i < tiles.first_tile(layer + 1); ++i) {
      const Tile& tile = tiles.tiles()[i];
      const auto part = weights_.bytes().subspan(tile.weight_offset_bytes, tiles.WeightBytes(tile));
      store_->StartReadWeights(i, part, IoClass::kDemandRead, op);
      FOREBAY_RETURN_IF_ERROR(engine_->Wait(op));
    }
    return optimizer_->UpdateLayer(layer, weights);
  }

  absl::Status Commit(int64_t step) {
    for (int layer = 0; layer < num_layers(); ++layer) {
      FOREBAY_RETURN_IF_ERROR(optimizer_->AwaitWriteBack(layer));
    }
    FOREBAY_RETURN_IF_ERROR(optimizer_->AwaitAllWrites());
    return store_->Commit({step, Json::object()});
  }

  // A whole step; returns the gradients' norm.
  absl::StatusOr<double> Step(int64_t step) {
    FOREBAY_ASSIGN_OR_RETURN(const GradientStats stats, Backward(step));
    optimizer_->BeginUpdate(ScalarsOfStep(step, stats.norm));
    for (int layer = 0; layer < num_layers(); ++layer) {
      FOREBAY_RETURN_IF_ERROR(UpdateLayer(layer));
    }
    FOREBAY_RETURN_IF_ERROR(Commit(step));
    return stats.norm;
  }

  int num_layers() const { return store_->inventory().num_layers(); }
  TensorStore& store() { return *store_; }
  OffloadedAdamW& optimizer() { return *optimizer_; }
  const Placement& placement() const { return placement_; }
  MemoryBudget& budget() { return budget_; }
  ThreadPool& pool() { return pool_; }

 private:
  Options options_;
  MemoryBudget budget_{0};
  ThreadPool pool_{2};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TensorStore> store_;
  HostBuffer weights_;
  Placement placement_;
  std::unique_ptr<OffloadedAdamW> optimizer_;
};

}  // namespace forebay
