// The inside of OffloadedOptimizer, shared by its source files: offloaded_optimizer_create.cc,
// offloaded_optimizer.cc (the backward pass and what follows it) and offloaded_optimizer_updates.cc
// (what becomes of a tile). Not for use elsewhere.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "forebay/optimizer/background_updates.h"
#include "forebay/optimizer/device_state.h"
#include "forebay/optimizer/gradient_landing.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/optimizer/staged_tiles.h"
#include "forebay/optimizer/tensor_updates.h"
#include "forebay/optimizer/tile_run.h"
#include "forebay/optimizer/tile_writes.h"
#include "forebay/swap/store/transfer_buffer.h"

namespace forebay {

// When an update is applied.
enum class UpdateTiming : uint8_t {
  kAsPlaced,  // as layers come in, or as speculation has begun it
  kDelayed,   // UpdateModes::BeginDelayedUpdate
};

// In RAM, all bytes of a tile. `state`: empty where it lives on the device and is not written.
struct TileMemory {
  std::span<std::byte> weights;
  std::span<std::byte> state;
  std::span<const std::byte> gradient;
};

struct OffloadedOptimizer::Impl {
  Impl(const OffloadedOptimizerOptions& options_in, const Placement& placement_in,
       TensorStore* store_in);

  absl::Status MakeStaging(MemoryBudget* budget);
  absl::Status LoadHostState(MemoryBudget* budget);
  absl::Status MakeDeviceState(MemoryBudget* budget);
  // The device to which memory of tiles goes for its update.
  Device* PinsFor() const { return placement.AnyOnDevice() ? options.device : nullptr; }
  // From what the store has newest, where it lives in memory.
  absl::Status ReadResidentState(int first_tile, int end_tile);
  absl::Status ReadHostState(int first_tile, int end_tile);
  std::vector<int> TilesAsHanded(const std::function<bool(int layer)>& takes) const;
  absl::Status MakeSpeculation(MemoryBudget* budget);
  absl::Status MakeDelays();
  absl::Status EndSpeculation(bool& complete);
  absl::Status SumOverParts();
  absl::Status CheckHand(const LayerGradient& gradient) const;
  absl::Status CheckOrder(int layer) const;
  // What comes before the first part of a layer's gradient, and behind its last one.
  absl::Status BeginTaking(int layer, std::span<const int> missing);
  void EndTaking(int layer);
  // Takes a gradient that is in RAM.
  absl::Status Take(const LayerGradient& gradient, ThreadPool& compute);
  // A gradient on the device. Requires: it fits, as CheckHand has it.
  absl::Status BringFromDevice(const LayerGradient& gradient, ThreadPool& compute);
  // Takes the gradient that is on its way, where one is.
  absl::Status Land();
  absl::Status CheckBeginUpdate(const UpdateScalars& scalars, ResidentWrites writes_resident,
                                UpdateTiming timing) const;
  // What every update begins with.
  void TakeStep(const UpdateScalars& scalars, ResidentWrites writes_resident);
  // Whether gradients of a step are there, or it speculates.
  bool StepIsOpen() const {
    return speculates || backward_finished || on_its_way.layer >= 0 || gradients->AnyHanded();
  }
  absl::Status UpdateTile(int tile, std::span<std::byte> weights);
  // Behind that of its last tile.
  void EndUpdateOf(int layer);
  absl::Status UpdateBeside(int tile, const StagingBuffer& buffer,
                            std::span<const std::byte> gradient);
  // Where the state of `tile` is in RAM; empty: it is on the device.
  std::span<std::byte> StateIn(const StagingBuffer& buffer, int tile);
  // Updates the tile, and starts its write-backs; where its state lives on the device they are
  // started by what comes next of this, or of EndOnDevice.
  absl::Status UpdateAndWrite(int tile, const TileMemory& memory);
  void StartWrites(int tile, const TileMemory& memory);
  // `part`: as TensorStore has it.
  absl::Status ForEachPart(int tile, absl::FunctionRef<absl::Status(int64_t part)> task);
  absl::Status VerifyPart(int tile, int64_t part, const TileMemory& memory) const;
  void SealPart(int tile, int64_t part, const TileMemory& memory);
  absl::Status UpdateOnHost(int tile, const TileMemory& memory);
  // A tile on the device. `state`: where it comes to, if it is to be written.
  struct OnDevice {
    int tile = -1;
    TileMemory memory;
  };
  absl::Status UpdateOnDevice(int tile, const TileMemory& memory);
  absl::Status ComputeOnDevice(OnDevice& begun);
  // Ends the tile in `on_device`, if there is one.
  absl::Status AwaitOnDevice();
  // The same behind tiles of which `status` is the first error; nothing is borrowed then.
  absl::Status EndOnDevice(absl::Status status);
  // Seals it, and starts its write. -1: none.
  absl::Status WriteState(int tile, std::span<std::byte> state);
  std::span<std::byte> HostState(int tile) {
    return host_state.bytes().subspan(host_state_offset_bytes[tile],
                                      tiles.StateBytes(tiles.tiles()[tile]));
  }
  size_t GradientBytes(const Tile& tile) const {
    return static_cast<size_t>(tile.num_elems * SizeOf(options.gradient_dtype));
  }
  // Whether the update in progress writes what it makes of a tile.
  bool WritesWeights(const Tile& tile) const {
    return resident == ResidentWrites::kNow || placement.weights[tile.layer] == Tier::kNvme;
  }
  bool WritesState(int tile) const {
    return resident == ResidentWrites::kNow || placement.state[tile] == Tier::kNvme;
  }
  // All of a tile, without its gradient.
  TileRun WholeRun(const Tile& tile, std::span<std::byte> weights,
                   std::span<std::byte> state) const;
  // Calls `update` for each run with one set of constants of the tile's elements
  // [begin_elem, end_elem), but for those that are left alone.
  absl::Status ForEachRun(
      const TileRun& whole, const Tile& tile, int64_t begin_elem, int64_t end_elem,
      absl::FunctionRef<absl::Status(const UpdateScalars& scalars, const TileRun& run)> update);
  const TileArithmetic& arithmetic() const {
    return options.arithmetic != nullptr ? *options.arithmetic : rule;
  }
  bool AnyIsDue() const;
  bool OnlyIsDue(int layer) const;
  absl::Status Failure() const {
    std::lock_guard lock(mutex);
    return failure;
  }

  const OffloadedOptimizerOptions options;
  const RuleArithmetic rule;
  const Placement placement;
  TensorStore* const store;
  const TileMap& tiles;
  std::unique_ptr<TensorUpdates> tensors;
  ThreadPool pool;

  // Buffers before the transfers that use them, so that these end first.
  TransferBuffer staging_memory;
  std::vector<StagingBuffer> staging;
  HostBuffer ring_memory;  // of gradients that speculation applies
  TransferBuffer host_state;
  std::vector<int64_t> host_state_offset_bytes;  // by tile; meaningless for tiles elsewhere
  std::unique_ptr<DeviceState> device_state;     // nullptr: no tile's state lives on a device
  std::unique_ptr<TileWrites> writes;
  std::unique_ptr<HeldGradients> gradients;
  std::unique_ptr<GradientLanding> landing;       // nullptr: all gradients come in RAM
  std::vector<std::atomic<bool>> due;             // by layer
  std::atomic<bool> expects_speculation = false;  // since ExpectSpeculation
  std::unique_ptr<StagedTiles> staged;
  std::vector<int> due_tiles;           // of the layers that are not speculative
  std::vector<int> speculative_layers;  // in the order of Hand
  // By layer: the memory of the window's resident layers, for what is updated outside of it.
  std::vector<std::span<std::byte>> resident_weights;

  // Training thread.
  bool delayed_is_pending = false;
  bool speculates = false;    // since BeginSpeculation, until BeginUpdate or AbandonStep
  size_t num_speculated = 0;  // speculative layers handed over since then
  NextGradient next;
  // The layer whose gradient was handed over on a device, and is not taken yet; -1: none.
  struct {
    int layer = -1;
    ThreadPool* compute = nullptr;
    bool is_begun = false;  // parts before it were taken
  } on_its_way;
  double most_squares = 0;  // of the norm with which it goes on
  double handed_squares = 0;
  bool speculation_is_complete = true;  // of FinishBackward
  bool backward_finished = false;
  int first_nonfinite_layer = -1;                  // of what was handed over so far
  UpdateScalars step;                              // of the updates that are due
  ResidentWrites resident = ResidentWrites::kNow;  // the same
  // By tile: whether what is in memory is newer than what was written. Of whoever updates or
  // writes.
  std::vector<bool> weights_deferred;
  std::vector<bool> state_deferred;
  double tile_wait_s = 0;  // of the layer being updated
  OnDevice on_device;      // what was begun there last; tile -1: nothing

  mutable std::mutex mutex;
  absl::Status failure;  // mutex: of an update; no further one is taken
  OptimizerStats stats;  // mutex

  // Last, so that their threads end before anything else.
  std::unique_ptr<BackgroundUpdates> speculation;  // nullptr: no layer is speculative
  std::unique_ptr<BackgroundUpdates> delays;       // nullptr: the placement delays no updates
};

}  // namespace forebay
