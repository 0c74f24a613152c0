// One training run over any inventory: the window of layers, the optimizer, the store and its
// commits behind one object. The trainer of train/ is one user; a binding of another framework is
// another. A step:
//
//   BeginStep                                 which weights it sees, and what will update them
//   Expect, Acquire, release the lease        forward: due updates are applied to layers on the way
//   UpdatesOfTheStepBefore                    they are complete, and committed where that is due
//   Acquire, release; Hand, or AddGradient    backward
//     and CloseLayer
//   FinishBackward                            the norm; or the pass has to be computed again
//   Update, or Skip, or Abandon               the step is real; or no update; or never was
//
// An update is lazy (applied as its layer is read next), speculative (applied in the backward pass,
// in the hope that nothing will be clipped) or delayed (applied in the backward pass of the next
// step, which computes with the weights of before), as the plan has it. The same calls serve all
// three, and lead to the same bits, except delayed ones. Of these no update is left out before a
// commit: what is pending is applied then, so that where commits fall is part of the result.
//
// A caller's mistake is a UsageError and changes nothing. After any other error, that of a read or
// a write, a step cannot go on: Abandon it. The store keeps the last committed step (of one slot:
// while nothing was being written).
//
// Not for: any tensor in any order (swap/session/tensor_session.h).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "forebay/base/activity.h"
#include "forebay/base/clock.h"
#include "forebay/base/dtype.h"
#include "forebay/base/json.h"
#include "forebay/base/process/parallel.h"
#include "forebay/collective/communicator.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/offload/offload_options.h"
#include "forebay/offload/open_layers.h"
#include "forebay/offload/plan.h"
#include "forebay/offload/ranks/gathered_weights.h"
#include "forebay/offload/ranks/gradient_sum.h"
#include "forebay/offload/raw_tensors.h"
#include "forebay/offload/spilled_activations.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/optimizer/tile_arithmetic.h"
#include "forebay/step/activation_storage.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/param_source.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

struct LayerSessionOptions {
  OffloadOptions offload;
  int threads = 1;             // of the update, where OffloadOptions::update_threads leaves it open
  ThreadPool* pool = nullptr;  // rounds gradients; nullptr: a pool of its own, of `threads`
  Device* device = nullptr;    // layers are copied to it; nullptr: to none
  // Memory of the device for gradients and state that lie there; nullptr: neither does.
  MemoryBudget* device_budget = nullptr;
  int num_disks = 1;  // that write side by side: for the pace of commits
  // Computes updates in place of OffloadOptions::optimizer; nullptr: that does. For measurements.
  const TileArithmetic* arithmetic = nullptr;
  // Layers whose gradients AddGradient may be summing at one time; memory: OpenLayerBytes. 0:
  // AddGradient is not used.
  int num_open_layers = 0;
  // The ranks of a run, each with a store of its own: gradients are those of all ranks' data,
  // summed in the order of the ranks, and a step is committed by all or none
  // (swap/store/rank_commits.h). Every rank makes the same calls in the same order, and hands
  // layers over in that of the schedule; gradients of tensors may be missing on some of them.
  // nullptr: the session is alone. Not with delayed updates.
  Communicator* ranks = nullptr;
  // How the ranks divide the state: plan and store of this one are of its part. Weights and
  // gradients are still those of whole layers. nullptr: each rank has the whole state.
  std::shared_ptr<const InventoryParts> parts;
  GatheredFor gathered_for = GatheredFor::kUse;  // of weights, where there are parts
  // So many layers may be lent at a time, where there are parts and weights are gathered for a use.
  int num_held_layers = 2;
  ParameterGroups groups;  // empty: those of OffloadOptions

  // Gives what a commit carries for the caller (CommitInfo::trainer); called in a commit, of
  // released_step(). Empty: what was given to Update or Skip.
  std::function<Json()> commit_state;
  // Called after each commit; may be empty.
  std::function<void()> after_commit;
  // Told now and then, on the caller's thread, the share of a commit that is written. May be empty.
  std::function<void(double fraction)> on_saving;
  // Called before a slot is written over: ends what still reads it. May be empty.
  std::function<absl::Status()> before_writing;
};

// The update that will follow a step's gradients.
struct StepUpdate {
  // Its scalars, after gradients of this norm (GradientStats::norm: as they were handed over, with
  // the loss scale in them). Called more than once; the same norm gives the same scalars.
  std::function<UpdateScalars(double norm)> scalars_of;
  // Norms up to this one are not clipped: their scalars are scalars_of(0).
  double most_unclipped_norm = std::numeric_limits<double>::infinity();
  // The settings of the groups, as many as the session has, from this step on; empty: as they are.
  std::vector<ParameterGroup> groups;
};

struct StepGradients {
  double norm = 0;                 // as GradientStats has it
  int first_nonfinite_layer = -1;  // the same
  // The hope of a speculative update failed. Forward and backward of the same data have to be
  // computed again, from BeginRepeat to FinishBackward; then Update, Skip or Abandon.
  bool must_repeat = false;
};

enum class CommitWhen : uint8_t { kByPace, kNow };

// Used by one thread at a time. In a step nothing is allocated that grows with the tensors' sizes.
class LayerSession final : public ParamSource, public std::enable_shared_from_this<LayerSession> {
 public:
  // Takes over the store, which has a commit and the plan's tiles and slots (StoreOptionsOf). A
  // lease keeps the session alive. `budget`, the store's engine and what `options` point to outlive
  // both. OutOfMemoryError, StorageError, CorruptError; UsageError where the options do not fit the
  // plan.
  static absl::StatusOr<std::shared_ptr<LayerSession>> Create(const OffloadPlan& plan,
                                                              LayerSessionOptions options,
                                                              std::unique_ptr<TensorStore> store,
                                                              MemoryBudget* budget);
  // Steps that are not committed are lost.
  ~LayerSession() override;
  // The memory that Create charges for AddGradient, for the plan's step_memory.
  static int64_t OpenLayerBytes(const Inventory& inventory, int num_open_layers);

  // ---- Weights

  // As ParamSource has them. A layer that does not exist is a UsageError of the next Acquire, and
  // nothing of that announcement counts. Between steps, after ShowNewest, they are the weights of
  // the released step: for evaluations.
  void Expect(std::span<const int> layers) override;
  absl::StatusOr<WeightsLease> Acquire(int layer) override;
  // Forgets what was announced and not acquired, so that another order can be announced.
  void CancelAnnounced();
  absl::Status ShowNewest();

  // ---- Raw tensors

  // All bytes of a raw tensor (base/tensor_spec.h; by its index in the inventory), in RAM, to read
  // until the session ends, and to change in a step, or after it until Commit. What they are when
  // Update, Skip or Commit is called is what the step's commit carries; BeginRepeat and Abandon
  // make them again what the released step left. UsageError: not a raw one.
  absl::StatusOr<std::span<std::byte>> RawTensor(int tensor);

  // ---- Activations

  // For the walks of the plan's schedule, and with its buffers for whoever computes; nullptr: the
  // plan spills none. Ends with the session.
  ActivationStorage* activations() { return activations_.get(); }

  // ---- A step

  absl::Status BeginStep(StepUpdate update);
  // Replaces the settings of the groups in the step in progress, before Update. UsageError where
  // the plan speculates: updates with the others may be applied.
  absl::Status SetGroups(std::vector<ParameterGroup> groups);
  // Completes the updates of the step before, but for delayed ones, and commits it where that is
  // due. The first gradient that is handed over does so too. UsageError while a lease is out, if a
  // layer was not read since its update.
  absl::Status UpdatesOfTheStepBefore();
  // The finished gradient of a layer, or a part of it, as OffloadedOptimizer::Hand takes it. If the
  // plan speculates or delays, in the order of its schedule, and the layer's weights, which may
  // change from then on, are not read again in the step. Several ranks hand over whole layers.
  absl::Status Hand(const LayerGradient& gradient);
  // Adds to the gradient of a tensor (by its index in the inventory): `elems` are all its elements,
  // of `dtype` (fp32, bf16 or fp16), in RAM. Sums are fp32, in the order of the calls. The tensors
  // of a layer may come in any order.
  absl::Status AddGradient(int tensor, DType dtype, std::span<const std::byte> elems);
  // Returns what AddGradient would refuse, for a caller whose elements are still on their way.
  absl::Status ExpectGradient(int tensor, DType dtype, int64_t num_bytes);
  // The gradient of the layer is complete, and is handed over. Where gradients have an order, so
  // are before it layers that got none.
  absl::Status CloseLayer(int layer);
  // Closes the layers that are open. UsageError while layers are lent or announced, if an update is
  // delayed. Where AddGradient is used, tensors that it was not called for
  // are left alone, as their whole layers may be.
  absl::StatusOr<StepGradients> FinishBackward();
  // Forgets the gradients of a pass that has to be computed again.
  absl::Status BeginRepeat();
  // Between FinishBackward and Update: asks scalars_of again, whose answer may depend on the norm
  // that FinishBackward gave. Before it, nothing is to be done. UsageError where the plan
  // speculates.
  absl::Status RefreshScalars();
  // Makes the step's update due. `kept` is what the step's commit carries if options.commit_state
  // is empty. kByPace: commits where the plan's pace says so, which may be in the next step.
  // UsageError where a gradient is not finite.
  absl::Status Update(Json kept, CommitWhen when = CommitWhen::kByPace);
  // The step's gradients are dropped, and it counts as a step. Where raw tensors changed in it, its
  // commit copies the whole store.
  absl::Status Skip(Json kept, CommitWhen when = CommitWhen::kByPace);
  // The step leaves no trace, but that BeginStep's groups stay. Released steps stay what they are;
  // a delayed update of the last one is applied before the next begins.
  void Abandon();

  // Commits the released step, if it is not. Between steps.
  absl::Status Commit();
  // The same with `kept` in place of what Update or Skip was given. UsageError where the step is
  // committed with something else.
  absl::Status Commit(Json kept);
  // The same, made once the step's update is applied: at once where it is, else in
  // UpdatesOfTheStepBefore of the next step. What it carries is as it is now, raw tensors too. A
  // crash until then leaves the step before.
  absl::Status CommitOnceApplied(Json kept);
  // With what the step was given.
  absl::Status CommitOnceApplied();

  // ---- How it stands

  int64_t committed_step() const { return committed_step_; }
  // The step that Commit makes durable: its update is applied or due, or it was skipped.
  int64_t released_step() const { return released_step_; }
  bool step_was_repeated() const { return is_repeated_; }
  bool speculates() const;      // the plan's updates are speculative
  ActivityTimes waits() const;  // of the caller, in all calls so far
  double update_s() const;      // in kernels
  const std::vector<int>& lent_layers() const { return lent_; }  // as often as each is lent
  TensorStore& store() { return *store_; }

 protected:
  void Release(int layer, Event* done) override;

 private:
  enum class State : uint8_t {
    kBetween,     // no step has begun
    kPass,        // forward and backward
    kMustRepeat,  // the pass has to be computed again
    kDone,        // the norm is known
  };

  LayerSession(const OffloadPlan& plan, LayerSessionOptions options,
               std::unique_ptr<TensorStore> store);
  static std::string_view NameOf(State state);
  // UsageError where a step is not in `state`; `call`: for the message.
  absl::Status CheckState(State state, std::string_view call) const;
  // UsageError where layers are lent, or announced and not acquired.
  absl::Status CheckNothingIsLent(std::string_view call) const;
  absl::Status CheckNothingIsAnnounced(std::string_view call) const;
  absl::Status CheckLayer(int layer) const;
  absl::Status CheckOrder(int layer) const;
  // UsageError where a delayed update may have changed it in this step.
  absl::Status CheckIsNotUpdated(int layer) const;
  bool Delays(int64_t step) const {
    return plan_.delay_update_from > 0 && step >= plan_.delay_update_from;
  }
  absl::Status BeginWriting();
  absl::Status BeginUpdate(int64_t step, bool commits);
  bool CommitIsDueHere(int64_t step, CommitWhen when) const;
  // Whether the step is to be committed: where one rank wants it, all do. UsageError where ranks
  // would make different updates.
  absl::StatusOr<bool> CommitIsDueAfter(int64_t step, CommitWhen when);
  void RestartCommitClock();
  absl::Status CheckCommitFits(const Json& kept) const;
  absl::Status CheckReleasedFits(Json kept) const;
  // UsageError where `kept` differs from what the released step's commit carries for good.
  absl::Status CheckSameCommit(const Json& kept) const;
  absl::Status AbandonGradients();
  absl::Status CheckRawTensors(std::string_view call) const;
  absl::Status MakeOpenUpdateWrite();
  void EndStep(int64_t step, Json kept, bool was_update);
  // Applies what is left of a delayed update, if one is pending.
  absl::Status FinishDelayed(absl::FunctionRef<void()> meanwhile = [] {});
  absl::Status ApplyUpdatesOfTheStepBefore();
  absl::Status FinishUpdates();
  absl::Status FinishAndCommit();
  absl::Status CommitReleased();
  absl::StatusOr<bool> OnlyRawHaveChanged();
  absl::Status WriteCommit(bool only_raw);
  absl::Status CheckHand(int layer) const;
  // UsageError while parts of a layer's gradient are missing; `call`: for the message.
  absl::Status CheckNoPartIsMissing(std::string_view call) const;
  absl::Status CheckHandToRanks(const LayerGradient& gradient) const;
  absl::Status HandOver(const LayerGradient& gradient);
  // Hands on what is under way of the sum over ranks, if there is one.
  absl::Status HandSum();
  absl::Status HandPieceOfSum();
  absl::StatusOr<std::span<const std::byte>> AcquireWhole(int layer);
  // Makes of the sums of squares of this rank's parts, by layer, those of whole layers.
  absl::Status SumOverParts(std::span<double> sums, absl::FunctionRef<void()> add_own);
  // The layers that the caller computes with.
  const Inventory& layers_of_caller() const {
    return options_.parts == nullptr ? store_->inventory() : options_.parts->whole();
  }
  absl::Status HandOpen(int layer);
  absl::Status CloseLayers();
  void MarkHanded(int layer);
  void ForgetHanded();

  const OffloadPlan plan_;
  const LayerSessionOptions options_;
  const std::vector<int> hand_over_order_;
  const bool keeps_order_;  // gradients come in that order
  std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool* pool_ = nullptr;

  // In this order, so that each is destroyed before what it uses.
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<OpenLayers> open_layers_;
  std::unique_ptr<GradientSum> sum_;  // nullptr: the session is alone
  std::unique_ptr<RawTensors> raw_;
  std::unique_ptr<SpilledActivations> activations_;  // nullptr: the plan spills none
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  std::unique_ptr<Swapper> swapper_;
  std::unique_ptr<GatheredWeights> gathered_;  // nullptr: the store has whole layers

  std::vector<int> lent_;        // layers, as often as they are lent; with room for all twice
  int64_t num_announced_ = 0;    // and not acquired
  absl::Status announce_error_;  // of the next Acquire

  State state_ = State::kBetween;
  StepUpdate update_;        // of the step in progress
  UpdateScalars scalars_;    // in a speculative pass those that are hoped for; then those to apply
  double most_norm_ = 0;     // of that hope
  bool is_settled_ = false;  // UpdatesOfTheStepBefore was done in this pass
  bool is_repeated_ = false;
  bool is_abandoned_ = false;           // the last step was
  std::vector<ParameterGroup> groups_;  // that the last BeginStep with some gave
  std::vector<uint8_t> is_handed_;      // by layer
  size_t num_handed_ = 0;
  StepGradients gradients_;
  // Steps that are clipped come in rows: after one nothing is applied until the norm is known. Only
  // speed depends on it.
  bool hopes_ = true;

  int64_t committed_step_ = 0;
  int64_t released_step_ = 0;
  Json released_kept_;
  bool update_is_open_ = false;       // whether an update was begun after the last commit
  bool open_update_commits_ = false;  // whether that is to be committed when it is applied
  bool open_update_writes_ = false;   // whether BeginWriting was called for it
  bool open_update_defers_ = false;   // whether what lies in RAM is left to FinishUpdates to write
  bool commit_is_said_ = false;       // since CommitOnceApplied, until that is made
  absl::Status failure_;              // of a commit, or an undoing: no further step or commit
  absl::Status undo_failure_;         // of the undoing: what lies in RAM is of no step, nor lent

  // The clocks by which a commit is due.
  bool has_begun_ = false;
  Stopwatch since_commit_;  // since the end of the last step that was to be committed
  Stopwatch step_watch_;
  double last_step_s_ = 0;
  ActivityTimes own_waits_;  // but for those of the window, optimizer and activations
  // Waits for what reads a slot say nothing of what a commit costs or saves.
  double waited_in_step_s_ = 0;
  double waited_since_commit_s_ = 0;
};

}  // namespace forebay
