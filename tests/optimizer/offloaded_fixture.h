// A small model in a store, its gradients, and the same training in memory as the judge.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/aio/engine.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/optimizer/tile_run.h"
#include "forebay/optimizer/update_modes.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/optimizer/gradients_on_device.h"
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
          .gradient_scale = std::min(1.0, 1.0 / (gradient_norm + 1e-6)),
          .rounding_seed = 7};
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

// Groups whose settings change from step to step, and tensors that are left alone. Each step counts
// as an update.
struct StepSettings {
  std::vector<int> of_tensor;
  std::function<std::vector<ParameterGroup>(int64_t step)> groups;
  std::function<std::vector<int>(int64_t step)> without_gradient;

  bool LeavesAlone(int64_t step, int tensor) const {
    return groups(step)[of_tensor[tensor]].frozen || IsWithout(step, tensor);
  }
  bool IsWithout(int64_t step, int tensor) const {
    return std::ranges::count(without_gradient(step), tensor) > 0;
  }
};

// Writes `value` over the gradients of tensors that `step` leaves alone.
inline void FillLeftAlone(const StepSettings& settings, const Inventory& inventory, int64_t step,
                          int layer, float value, std::vector<float>& gradient) {
  for (size_t i = 0; i < inventory.tensors().size(); ++i) {
    const TensorSpec& tensor = inventory.tensors()[i];
    if (tensor.layer != layer || !settings.LeavesAlone(step, static_cast<int>(i))) continue;
    std::fill_n(gradient.begin() + tensor.offset_elems, tensor.num_elems, value);
  }
}

// The update over whole layers in memory, with the reference kernels: no tiles of a size, tiers or
// threads.
class InMemoryOptimizer {
 public:
  InMemoryOptimizer(Layout layout, DType gradient_dtype, const OptimizerConfig& rule = kTestAdamW,
                    const StepSettings* settings = nullptr)
      : settings_(settings),
        inventory_(OptimizerInventory()),
        gradient_dtype_(gradient_dtype),
        rule_(rule),
        tiles_(inventory_, layout, kWholeLayer, {1}, MomentsOf(rule)) {
    for (const Tile& tile : tiles_.tiles()) {
      weights_.emplace_back(tiles_.WeightBytes(tile));
      state_.emplace_back(tiles_.StateBytes(tile));
    }
    const CounterRng rng(/*seed=*/1);
    for (const TensorSpec& tensor : inventory_.tensors()) {
      for (int64_t i = tensor.offset_elems; i < tensor.offset_elems + tensor.num_elems; ++i) {
        SetMaster(tensor.layer, i, static_cast<float>(0.02 * rng.Normal(i)));
      }
    }
  }

  // Returns the norm of the gradients.
  double Step(int64_t step) {
    double sum = 0;
    std::vector<std::vector<std::byte>> rounded;
    for (int layer = 0; layer < inventory_.num_layers(); ++layer) {
      rounded.emplace_back();
      std::vector<float> gradient = GradientOf(inventory_, layer, step);
      if (settings_ != nullptr) {
        FillLeftAlone(*settings_, inventory_, step, layer, 0.0f, gradient);
      }
      sum += HandOver(gradient, rounded.back());
    }
    const double norm = std::sqrt(sum);
    const int64_t elem_bytes = SizeOf(gradient_dtype_);
    for (const TensorSpec& tensor : inventory_.tensors()) {
      const int tile = tiles_.TileAt(tensor.layer, tensor.offset_elems);
      const int64_t first = tensor.offset_elems - tiles_.tiles()[tile].first_elem;
      TileRun run = PartOf(Whole(tile), first, tensor.num_elems);
      run.gradient = rounded[tensor.layer].data() + tensor.offset_elems * elem_bytes;
      run.gradient_dtype = gradient_dtype_;
      run.weight_decay = tensor.decay ? kTestWeightDecay : 0.0;
      UpdateScalars scalars = ScalarsOfStep(step, norm);
      OptimizerConfig rule = rule_;
      if (settings_ != nullptr && !Apply(tensor, step, rule, scalars, run)) continue;
      UpdateRunRef(rule, scalars, run);
    }
    return norm;
  }
  // The settings of `tensor`, by its index.
  int64_t missed_updates(int tensor, int64_t num_steps) const {
    const auto found = updates_of_tensor_.find(tensor);
    return num_steps - (found == updates_of_tensor_.end() ? 0 : found->second);
  }

  const Inventory& inventory() const { return inventory_; }
  const OptimizerConfig& rule() const { return rule_; }
  // The bytes of a plane of elements [first, first + num_elems) of a layer.
  std::span<std::byte> PlaneBytes(int layer, int plane, int64_t first, int64_t num_elems) {
    const int tile = tiles_.TileAt(layer, first);
    const Tile& spec = tiles_.tiles()[tile];
    const TilePlanes& planes = tiles_.PlanesOf(spec);
    const std::span<std::byte> half = plane == 0 ? weights_[tile] : state_[tile];
    return half.subspan(
        planes.OffsetBytes(plane, spec.num_elems) + planes.Bytes(plane, first - spec.first_elem),
        planes.Bytes(plane, num_elems));
  }

 private:
  static constexpr int64_t kWholeLayer = int64_t{1} << 30;

  // Changes an update of the tensor as the settings do; whether there is one.
  bool Apply(const TensorSpec& tensor, int64_t step, OptimizerConfig& rule, UpdateScalars& scalars,
             TileRun& run) {
    const auto index = static_cast<int>(&tensor - inventory_.tensors().data());
    if (settings_->LeavesAlone(step, index)) return false;
    scalars.step = ++updates_of_tensor_[index];
    const ParameterGroup group = settings_->groups(step)[settings_->of_tensor[index]];
    rule.beta1 = group.beta1.value_or(rule.beta1);
    rule.momentum = group.beta1.value_or(rule.momentum);
    rule.beta2 = group.beta2.value_or(rule.beta2);
    rule.eps = group.eps.value_or(rule.eps);
    run.weight_decay = group.weight_decay;
    run.lr_scale = group.lr_scale;
    return true;
  }

  TileRun Whole(int tile) {
    return RunOf(tiles_, tiles_.tiles()[tile], weights_[tile], state_[tile]);
  }
  void SetMaster(int layer, int64_t elem, float value) {
    const int tile = tiles_.TileAt(layer, elem);
    const TileRun run = Whole(tile);
    const int64_t i = elem - run.first_elem;
    switch (run.weights) {
      case WeightFormat::kSplitBf16:
        static_cast<Bf16*>(run.weight)[i] = Split(value).w16;
        run.remainder[i] = Split(value).r16;
        break;
      case WeightFormat::kFp16:
        static_cast<Fp16*>(run.weight)[i] = FloatToFp16(value);
        run.master[i] = value;
        break;
      case WeightFormat::kFp32:
        static_cast<float*>(run.weight)[i] = value;
        break;
    }
  }
  double HandOver(const std::vector<float>& gradient, std::vector<std::byte>& rounded) const {
    const auto elem_bytes = static_cast<size_t>(SizeOf(gradient_dtype_));
    rounded.resize(gradient.size() * elem_bytes);
    double sum = 0;
    for (size_t i = 0; i < gradient.size(); i += kNormBlockElems) {
      sum += RoundAndSumSquaresRef(&gradient[i], kNormBlockElems, gradient_dtype_,
                                   &rounded[i * elem_bytes]);
    }
    return sum;
  }

  const StepSettings* settings_;              // nullptr: two groups, and every tensor in every step
  std::map<int, int64_t> updates_of_tensor_;  // with settings
  Inventory inventory_;
  DType gradient_dtype_;
  OptimizerConfig rule_;
  TileMap tiles_;  // one for each layer, or two
  std::vector<std::vector<std::byte>> weights_;
  std::vector<std::vector<std::byte>> state_;
};

// Writes the starting values of `start` to a new store and commits them as step 0.
inline absl::Status WriteStartingPoint(TensorStore& store, InMemoryOptimizer& start) {
  MemoryBudget budget(0);
  const TileMap& tiles = store.tiles();
  FOREBAY_ASSIGN_OR_RETURN(
      const HostBuffer buffer,
      HostBuffer::Create(&budget, "test", tiles.max_weight_bytes() + tiles.max_state_bytes()));
  IoOp weights_op, state_op;
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    const Tile& tile = tiles.tiles()[i];
    const TilePlanes& planes = tiles.PlanesOf(tile);
    const auto weights = buffer.bytes().first(tiles.WeightBytes(tile));
    const auto state = buffer.bytes().subspan(tiles.max_weight_bytes(), tiles.StateBytes(tile));
    std::ranges::fill(state, std::byte{0});
    for (int plane = 0; plane < planes.size(); ++plane) {
      const auto values = start.PlaneBytes(tile.layer, plane, tile.first_elem, tile.num_elems);
      const auto half = plane == 0 ? weights : state;
      std::ranges::copy(values, half.begin() + planes.OffsetBytes(plane, tile.num_elems));
    }
    store.StartWriteWeights(i, weights, weights_op);
    store.StartWriteState(i, state, state_op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(weights_op));
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(state_op));
    store.MarkWeightsWritten(i);
    store.MarkStateWritten(i);
  }
  return store.Commit({0, Json::object()});
}

// Every committed bit, padding included, against memory.
inline void ExpectStoreHolds(TensorStore& store, InMemoryOptimizer& expected) {
  MemoryBudget budget(0);
  const TileMap& tiles = store.tiles();
  auto buffer =
      HostBuffer::Create(&budget, "test", tiles.max_weight_bytes() + tiles.max_state_bytes());
  ASSERT_TRUE(buffer.ok());
  IoOp weights_op, state_op;
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    const Tile& tile = tiles.tiles()[i];
    const TilePlanes& planes = tiles.PlanesOf(tile);
    const auto weights = buffer->bytes().first(tiles.WeightBytes(tile));
    const auto state = buffer->bytes().subspan(tiles.max_weight_bytes(), tiles.StateBytes(tile));
    store.StartReadWeights(i, weights, IoClass::kDemand, weights_op);
    store.StartReadState(i, state, IoClass::kDemand, state_op);
    ASSERT_TRUE(store.engine().Wait(weights_op).ok());
    ASSERT_TRUE(store.engine().Wait(state_op).ok());
    for (int plane = 0; plane < planes.size(); ++plane) {
      SCOPED_TRACE(testing::Message() << "tile " << i << " plane " << plane);
      const auto values = expected.PlaneBytes(tile.layer, plane, tile.first_elem, tile.num_elems);
      const auto half = plane == 0 ? weights : state;
      const auto stored = half.subspan(planes.OffsetBytes(plane, tile.num_elems), values.size());
      ASSERT_TRUE(std::ranges::equal(stored, values));
    }
    for (const std::byte filler :
         state.subspan(planes.OffsetBytes(planes.size(), tile.num_elems))) {
      ASSERT_EQ(filler, std::byte{0});
    }
  }
}

inline constexpr double kNoMostNorm = std::numeric_limits<double>::infinity();

// kDevice, kThree (one after another): of state alone.
enum class Tiers : uint8_t { kHost, kNvme, kMixed, kDevice, kThree };

inline Tier TierAt(Tiers tiers, int index) {
  switch (tiers) {
    case Tiers::kHost:
      return Tier::kHost;
    case Tiers::kNvme:
      return Tier::kNvme;
    case Tiers::kMixed:
      return index % 2 == 0 ? Tier::kNvme : Tier::kHost;
    case Tiers::kDevice:
      return Tier::kDevice;
    case Tiers::kThree:
      return std::array{Tier::kNvme, Tier::kDevice, Tier::kHost}[static_cast<size_t>(index % 3)];
  }
  return Tier::kNvme;
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
    DType gradient_dtype = DType::kBF16;
    int64_t tile_elems = 6144;
    Tiers state = Tiers::kNvme;
    Tiers gradients = Tiers::kHost;
    int num_threads = 1;
    int num_io_threads = 1;
    int num_staging_tiles = 4;
    Tiers weights = Tiers::kNvme;
    bool io_uring = false;       // instead of threads
    bool speculative = false;    // everything on NVMe, but for gradients as `gradients` has it
    bool first_is_lazy = false;  // with `speculative`: layer 0 is updated on read
    bool delayed = false;        // updates
    OptimizerConfig rule = kTestAdamW;
    Device* gradient_device = nullptr;  // whose memory gradients come from
    int64_t landing_elems = 0;          // of them at one time, as OffloadedOptimizerOptions has it
    int64_t part_elems = 0;  // of which such gradients are handed over at one time; 0: whole
    const StepSettings* settings = nullptr;
    std::vector<int64_t> missed_updates = {};
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
    OffloadedOptimizerOptions settings;
    settings.rule = options.rule;
    settings.weight_decay = kTestWeightDecay;
    settings.gradient_dtype = options.gradient_dtype;
    settings.num_threads = options.num_threads;
    settings.num_staging_tiles = options.num_staging_tiles;
    settings.device = options.gradient_device;
    settings.landing_elems = options.landing_elems;
    settings.device_budget = &run->device_budget_;
    const bool on_device = options.state == Tiers::kDevice || options.state == Tiers::kThree;
    if (on_device && settings.device == nullptr) {
      run->device_ = ChooseDevice().device;  // a GPU, one that is emulated, or the host's twin
      settings.device = run->device_.get();
    }
    if (options.settings != nullptr) {
      // Those of a step before the first, so that every step's have to be set.
      settings.groups = {options.settings->groups(0), options.settings->of_tensor};
      settings.missed_updates = options.missed_updates;
    }
    for (int layer = run->num_layers() - 1; layer >= 0; --layer) {
      settings.hand_over_order.push_back(layer);
    }
    run->placement_ =
        PlacementOf(run->store().tiles(), options.weights, options.state, options.gradients);
    for (int layer = 0; layer < run->num_layers(); ++layer) {
      const bool speculative = options.speculative &&
                               run->placement_.gradients[layer] == Tier::kNvme &&
                               !(options.first_is_lazy && layer == 0);
      run->placement_.update_times.push_back(options.delayed ? UpdateTime::kAfterNextHand
                                             : speculative   ? UpdateTime::kAfterHand
                                                             : UpdateTime::kOnRead);
    }
    // Not a byte more than what is announced.
    FOREBAY_RETURN_IF_ERROR(run->store().EnsureScratchArea(
        OffloadedOptimizer::GradientAreaBytes(settings, run->placement_, run->store().tiles())));
    FOREBAY_ASSIGN_OR_RETURN(
        run->optimizer_,
        OffloadedOptimizer::Create(settings, run->placement_, run->store_.get(), &run->budget_));
    if (options.gradient_device != nullptr) {
      FOREBAY_ASSIGN_OR_RETURN(
          run->on_device_,
          GradientsOnDevice::Create(options.gradient_device,
                                    run->store().inventory().largest_layer_elems()));
    }
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
    InMemoryOptimizer start(options_.layout, options_.gradient_dtype, options_.rule);
    StoreOptions store_options;
    store_options.directories = {path};
    store_options.layout = options_.layout;
    store_options.moment_set = MomentsOf(options_.rule);
    store_options.tile_elems = options_.tile_elems;
    FOREBAY_ASSIGN_OR_RETURN(store_,
                             TensorStore::Create(store_options, start.inventory(), engine_.get()));
    return WriteStartingPoint(*store_, start);
  }

  absl::StatusOr<GradientStats> Backward(int64_t step) {
    FOREBAY_RETURN_IF_ERROR(SetGroups(step));
    for (int layer = num_layers() - 1; layer >= 0; --layer) {
      FOREBAY_RETURN_IF_ERROR(Hand(layer, step));
    }
    return optimizer_->FinishBackward();
  }
  absl::Status SetGroups(int64_t step) {
    if (options_.settings == nullptr) return absl::OkStatus();
    return optimizer_->SetGroups(options_.settings->groups(step));
  }
  absl::Status Hand(int layer, int64_t step) {
    const Inventory& inventory = store().inventory();
    std::vector<float> gradient = GradientOf(inventory, layer, step);
    if (options_.settings == nullptr) return HandOver(layer, std::move(gradient));
    FillLeftAlone(*options_.settings, inventory, step, layer,
                  std::numeric_limits<float>::quiet_NaN(), gradient);
    const LayerSpec& spec = inventory.layers()[layer];
    std::vector<int> without;
    for (int i = spec.first_tensor; i < spec.first_tensor + spec.num_tensors; ++i) {
      if (options_.settings->IsWithout(step, i)) without.push_back(i);
    }
    return HandOver(layer, std::move(gradient), without);
  }
  absl::Status HandOver(int layer, std::vector<float> gradient, std::span<const int> without = {}) {
    if (on_device_ == nullptr) {
      return optimizer_->Hand(Fp32Gradient(layer, gradient, 0, without), pool_);
    }
    if (options_.part_elems > 0) {
      FOREBAY_CHECK(without.empty());
      return on_device_->HandParts(*optimizer_, layer, std::move(gradient), options_.part_elems,
                                   pool_);
    }
    return on_device_->Hand(*optimizer_, layer, std::move(gradient), pool_, without);
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
      store_->StartReadWeights(i, part, IoClass::kDemand, op);
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

  // Backward with what is applied in the hope of `scalars`.
  absl::StatusOr<GradientStats> SpeculativeBackward(const UpdateScalars& scalars,
                                                    double most_norm) {
    FOREBAY_RETURN_IF_ERROR(store_->BeginWriting());
    FOREBAY_RETURN_IF_ERROR(SetGroups(scalars.step));
    FOREBAY_RETURN_IF_ERROR(optimizer_->modes().BeginSpeculation(scalars, most_norm));
    return Backward(scalars.step);
  }

  // Hopes that nothing is clipped, and where it was computes again. What is left is the commit.
  absl::StatusOr<double> SpeculativeUpdate(int64_t step, double most_norm) {
    UpdateScalars hoped = ScalarsOfStep(step, 0);
    FOREBAY_ASSIGN_OR_RETURN(GradientStats stats, SpeculativeBackward(hoped, most_norm));
    const double norm = stats.norm;
    const UpdateScalars needed = ScalarsOfStep(step, norm);
    if (!optimizer_->modes().SpeculationIsComplete() ||
        needed.gradient_scale != hoped.gradient_scale) {
      const std::span<const int> speculated = optimizer_->modes().Speculated();
      optimizer_->AbandonStep();
      for (const int layer : speculated) {
        FOREBAY_RETURN_IF_ERROR(optimizer_->modes().RestoreState(layer));
      }
      FOREBAY_ASSIGN_OR_RETURN(stats, SpeculativeBackward(needed, kNoMostNorm));
    }
    FOREBAY_CHECK(optimizer_->modes().SpeculationIsComplete() && stats.norm == norm);
    FOREBAY_RETURN_IF_ERROR(optimizer_->BeginUpdate(needed));
    return norm;
  }

  // Applies the update that is pending and commits it, if any is.
  absl::Status FinishDelayed(int64_t step) {
    if (!optimizer_->modes().DelayedUpdateIsPending()) return absl::OkStatus();
    FOREBAY_RETURN_IF_ERROR(optimizer_->modes().FinishDelayedUpdate());
    return store_->Commit({step, Json::object()});
  }
  // A step whose update is pending then; that of the step before is applied. The norm.
  absl::StatusOr<double> DelayedStep(int64_t step) {
    FOREBAY_ASSIGN_OR_RETURN(const GradientStats stats, Backward(step));
    FOREBAY_RETURN_IF_ERROR(optimizer_->modes().FinishDelayedUpdate());
    FOREBAY_RETURN_IF_ERROR(store_->BeginWriting());
    FOREBAY_RETURN_IF_ERROR(optimizer_->modes().BeginDelayedUpdate(ScalarsOfStep(step, stats.norm),
                                                                   ResidentWrites::kNow));
    return stats.norm;
  }

  // A whole step; returns the gradients' norm.
  absl::StatusOr<double> Step(int64_t step) {
    if (options_.delayed) {
      FOREBAY_ASSIGN_OR_RETURN(const double norm, DelayedStep(step));
      FOREBAY_RETURN_IF_ERROR(FinishDelayed(step));
      return norm;
    }
    if (options_.speculative) {
      FOREBAY_ASSIGN_OR_RETURN(const double norm, SpeculativeUpdate(step, /*most_norm=*/1e30));
      FOREBAY_RETURN_IF_ERROR(ApplyAndCommit(step));
      return norm;
    }
    FOREBAY_ASSIGN_OR_RETURN(const GradientStats stats, Backward(step));
    FOREBAY_RETURN_IF_ERROR(optimizer_->BeginUpdate(ScalarsOfStep(step, stats.norm)));
    FOREBAY_RETURN_IF_ERROR(ApplyAndCommit(step));
    return stats.norm;
  }

  // What is due.
  absl::Status ApplyAndCommit(int64_t step) {
    for (int layer = 0; layer < num_layers(); ++layer) {
      if (optimizer_->UpdateIsDue(layer)) FOREBAY_RETURN_IF_ERROR(UpdateLayer(layer));
    }
    return Commit(step);
  }

  // Over this run, which must outlive it, with a window smaller than the model.
  absl::StatusOr<std::unique_ptr<Swapper>> MakeSwapper() {
    WindowOptions window;
    window.num_block_buffers = 2;
    window.first_block_layer = 1;
    window.last_block_layer = 2;
    return Swapper::Create(window, placement_, store_.get(), optimizer_.get(), &budget_);
  }

  int num_layers() const { return store_->inventory().num_layers(); }
  TensorStore& store() { return *store_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }
  const Placement& placement() const { return placement_; }
  MemoryBudget& budget() { return budget_; }
  MemoryBudget& device_budget() { return device_budget_; }
  ThreadPool& pool() { return pool_; }

 private:
  Options options_;
  MemoryBudget budget_{0};
  std::unique_ptr<Device> device_;  // where state lives, if it is nobody else's
  MemoryBudget device_budget_{0};
  ThreadPool pool_{2};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TensorStore> store_;
  HostBuffer weights_;
  Placement placement_;
  std::unique_ptr<GradientsOnDevice> on_device_;  // ends behind what reads it
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

}  // namespace forebay
