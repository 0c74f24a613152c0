// The out-of-core optimizer: holds finished gradients until their global norm is known, then
// updates each layer's tiles as the swapper brings the layer in for the next forward pass
// (swap/window/swapper.h), reading state ahead and writing behind. What is computed on a tile is
// behind tile_arithmetic.h.
//
// - In the backward pass, Hand of every layer rounds once, adds to the norm, and holds or spills.
// - FinishBackward gives the norm, and BeginUpdate makes every layer's update due.
// - UpdateLayer follows as layers come in, on the swapper's thread.
//
// Clipping is global and exact: no gradient is applied before the norm of all is known. Plans that
// apply updates at other times ask modes() (update_modes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "forebay/base/process/parallel.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/optimizer/tile_arithmetic.h"
#include "forebay/step/layer_gradient.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

class UpdateModes;

struct OffloadedOptimizerOptions {
  OptimizerConfig rule;
  double weight_decay = 0.01;  // without groups: of the tensors that decay
  ParameterGroups groups;      // empty: DecayGroups
  // By tensor, as missed_updates() was after the last update that is committed; empty: none missed
  // any.
  std::vector<int64_t> missed_updates;
  // What is computed instead of the rule; must outlive the optimizer. nullptr: the rule.
  const TileArithmetic* arithmetic = nullptr;
  DType gradient_dtype = DType::kBF16;  // what Hand rounds to
  // Where Hand's gradients may lie, and state that the placement has on a device, and its memory;
  // nullptr: all in RAM.
  Device* device = nullptr;
  MemoryBudget* device_budget = nullptr;
  bool lands_gradients = true;  // where there is a device; false: Hand's are in RAM all the same
  int64_t landing_elems = 0;    // of a gradient at one time; 0: GradientLanding::PartElems
  int num_threads = 1;          // of the update
  int num_staging_tiles = 4;    // state tiles in flight; >= 2
  // Tiles of speculative layers whose gradients wait for their update; >= 2. With those of a whole
  // layer, its backward pass waits for no update.
  int num_gradient_tiles = 4;
  // Every layer once, as Hand gets them: for placements with other UpdateTimes than kOnRead.
  std::vector<int> hand_over_order;
  // Empty: the store has whole layers. Called by FinishBackward, which returns its error. Create
  // then charges HeldGradients::SumsBytes more.
  SumOverParts sum_over_parts;
  // By layer: the element of the whole one that the store's first is, which keys the rounding of
  // moments. Empty: the store has whole layers.
  std::vector<int64_t> first_elems;
  // For StagingBytes: when a placement may have layers updated, and whether state on the device.
  UpdateTime may_update = UpdateTime::kOnRead;
  bool may_have_state_on_device = false;
};

struct GradientStats {
  double norm = 0;                 // L2 norm of the gradients as handed over (rounded)
  int first_nonfinite_layer = -1;  // in the order of Hand: where it arose; -1: all finite
};

// When the tiles that live in memory go to the store.
enum class ResidentWrites : uint8_t {
  kNow,       // as they are updated: the step will be committed
  kDeferred,  // with a later step, or when WriteDeferred and WriteDeferredState ask for it
};

struct OptimizerStats {
  double update_s = 0;   // time in kernels
  double io_wait_s = 0;  // time UpdateLayer waited for state
  // Time that Hand and FinishBackward, and the calls of modes(), waited for what was begun beside
  // the passes.
  double hand_wait_s = 0;
  int64_t updated_elems = 0;
};

// Tensors may be left alone: a frozen group's always (ParameterGroup), others in a step that gives
// them no gradient (Hand). Their weights and moments then keep every bit, without decay, and the
// norm takes their gradients as zero. Each tensor's updates are counted on their own, for the bias
// corrections (UpdateScalars::step), by how many of all it has missed.
//
// A call in the wrong order, or with what does not fit the store, is a UsageError, and nothing is
// changed by it.
//
// Weights and state that live in RAM or on the device are written to the store for a commit alone,
// so steps that are not committed may leave that out (ResidentWrites::kDeferred).
//
// State on the device is updated there, with the bits of the CPU.
//
// Threads: UpdateLayer, UpdateTiles, WriteDeferred and the two for write-backs belong to the
// swapper's thread, UpdateIsDue and stats to any, the rest to the training thread. Nothing is
// allocated after Create. After an error the object takes no further updates. A store of two slots
// then still holds the last committed step; of one slot, what was being written over is lost.
class OffloadedOptimizer : public TileUpdater {
 public:
  // Loads state that lives in memory from the store, which must have a committed step. Everything
  // pointed to must outlive it. OutOfMemoryError, StorageError, EnvironmentError; UsageError where
  // the groups or missed updates do not fit. Requires: rule.eps > 0 (else 0/0 where a gradient is
  // zero); a device, and no other arithmetic than the rule's, where the placement has state there.
  static absl::StatusOr<std::unique_ptr<OffloadedOptimizer>> Create(
      const OffloadedOptimizerOptions& options, const Placement& placement, TensorStore* store,
      MemoryBudget* budget);
  ~OffloadedOptimizer() override;
  // At most what Create charges beside the placement's resident bytes, for the planner (less when
  // no gradient is spilled).
  static int64_t StagingBytes(const OffloadedOptimizerOptions& options, const TileMap& tiles);
  // The same of one placement, to the byte.
  static int64_t StagingBytes(const OffloadedOptimizerOptions& options, const Placement& placement,
                              const TileMap& tiles);
  // Bytes of the scratch area that `placement` needs for gradients, from its beginning on.
  static StripeBytes GradientAreaBytes(const OffloadedOptimizerOptions& options,
                                       const Placement& placement, const TileMap& tiles);

  // Of plans whose updates are applied at other times than when a layer is read.
  UpdateModes& modes() { return *modes_; }
  const UpdateModes& modes() const { return *modes_; }

  // The settings of the groups, as many as at creation, from the next update that begins on: not of
  // one that is due, pending or has begun. What is frozen changes only between steps. UsageError.
  absl::Status SetGroups(std::span<const ParameterGroup> groups);

  // Takes over the finished gradient of a layer, already a mean over the step's tokens, or a part
  // of it; fp32 is rounded to the type in which gradients are held. Adds its squared norm in fixed
  // blocks by element index (so the norm has the same bits whatever the tiles, threads, parts and
  // placement). Padding must be zero. `pool`: the caller's compute threads. Each layer once per
  // step, in any order that is the same every step, or in hand_over_order while an update is
  // delayed, which then is applied to the layer; its parts one after the other, each but the last a
  // multiple of kNormBlockElems; a layer of no elements has one. Memory is free for reuse on
  // return, except that what lies on the options' device is rounded there, and on its way on
  // return: `pool` is used, and what is wrong with it is an error, until the next call, or the next
  // but one. UsageError, StorageError.
  absl::Status Hand(const LayerGradient& gradient, ThreadPool& pool);
  NextGradient next_gradient() const;

  // Waits for spilled gradients to be written. StorageError;
  // UsageError names the first layer that was not handed over.
  absl::StatusOr<GradientStats> FinishBackward();
  // Makes every layer's update due, and starts reading state. After FinishBackward, when every
  // update of the step before was applied. UsageError; the error of an update before this one.
  absl::Status BeginUpdate(const UpdateScalars& step,
                           ResidentWrites resident = ResidentWrites::kNow);
  // The error that BeginUpdate would return, with nothing begun.
  absl::Status CheckBeginUpdate(const UpdateScalars& step, ResidentWrites resident) const;
  // missed_updates() as it will be when the update of the gradients that were handed over begins.
  std::vector<int64_t> MissedUpdatesAfter() const;
  // By tensor, how many of all updates that were begun it has missed. It is for the record of the
  // commit of the last one.
  std::span<const int64_t> missed_updates() const;
  // Forgets the gradients handed over for a step that is abandoned before BeginUpdate, and what was
  // applied of them. Updates that were due before stay due, or pending.
  void AbandonStep();

  bool UpdateIsDue(int layer) const override;
  // Or one is pending (modes()). For the training thread.
  bool AnyUpdateIsDue() const;
  absl::Status UpdateLayer(int layer, std::span<std::byte> weights) override;
  absl::Status UpdateTiles(int layer, int first_tile, int end_tile,
                           std::span<std::byte> weights) override;
  absl::Status WriteDeferred(int layer, std::span<std::byte> weights) override;
  absl::Status AwaitWriteBack(int layer) override;
  absl::Status AwaitWriteBackOfTiles(int first_tile, int end_tile) override;
  bool ReadFurther() override;
  // Starts writing the state in memory that is newer than the store's. `meanwhile`, here and below,
  // is called between parts of the work. Requires: no update is due,
  // and the swapper's thread is idle.
  absl::Status WriteDeferredState(absl::FunctionRef<void()> meanwhile = [] {});

  // Waits until everything that was updated is written, weights and state; then the store may
  // commit, once no update is due any more. The first error. May run beside AwaitWriteBack.
  absl::Status AwaitAllWrites(absl::FunctionRef<void()> meanwhile = [] {});

  OptimizerStats stats() const;

 private:
  friend class UpdateModes;
  struct Impl;
  explicit OffloadedOptimizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  std::unique_ptr<UpdateModes> modes_;
};

}  // namespace forebay
