// Which tensors an update changes, and with which scalars: the parameter groups, the tensors that
// got no gradient in a step, and how many updates each tensor has missed.
//
// Two steps are apart here, as an update may be due or pending while the gradients of the next step
// come: what is handed over, and what the update in progress takes of that when it begins.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/optimizer/parameter_groups.h"

namespace forebay {

// Tensors are named by their index in the inventory. Nothing is allocated after Create.
//
// Threads: what an update reads (RunsOf, IsLeftAlone, ScalarsOf, GroupOf) belongs to whoever
// updates the layer, the rest to the training thread. An update of a layer happens after the call
// that prepared it.
class TensorUpdates {
 public:
  // `missed`: by tensor, the updates made so far that it was left out of; empty: none.
  // UsageError. `inventory` must outlive it.
  static absl::StatusOr<std::unique_ptr<TensorUpdates>> Create(const OptimizerConfig& rule,
                                                               const Inventory& inventory,
                                                               ParameterGroups groups,
                                                               std::span<const int64_t> missed);

  // For the updates that begin from here on. `may_freeze`: whether other groups may be frozen than
  // before; not while gradients of a step are there. UsageError; nothing is changed then.
  absl::Status SetGroups(std::span<const ParameterGroup> groups, bool may_freeze);

  // ---- The step that is handed over.
  // UsageError where `without_gradient` names what is no tensor of the layer.
  absl::Status CheckHand(int layer, std::span<const int> without_gradient) const;
  // Requires: CheckHand.
  void Hand(int layer, std::span<const int> without_gradient);
  // The elements of the layer that was handed over last whose gradients count as zero, in order.
  std::span<const ElemRange> AsZeros() const { return as_zeros_; }
  // By tensor, whether an update of what was handed over leaves it alone.
  std::vector<uint8_t> LeftAlone() const;
  void AbandonStep();

  // ---- The update.
  // UsageError where a tensor has missed as many updates as `step` counts, so that it has had none.
  absl::Status CheckStep(int64_t step) const;
  // From here on the groups of SetGroups hold.
  void TakeGroups() { groups_ = next_groups_; }
  // The layer, just handed over, may be updated before the step's other layers.
  void Prepare(int layer);
  // All layers may be updated; the tensors that are left alone have missed one more.
  void BeginUpdate();
  // By tensor, with the update that was begun last.
  std::span<const int64_t> missed() const { return missed_; }

  // The runs that an update of the layer takes, over the whole padded vector: those of the groups,
  // or where tensors differ in more, one for each tensor.
  std::span<const GroupRun> RunsOf(int layer) const {
    return by_tensor_[layer] ? tensor_runs_[layer] : group_runs_[layer];
  }
  bool IsLeftAlone(const GroupRun& run) const { return left_alone_[run.tensor] != 0; }
  const ParameterGroup& GroupOf(const GroupRun& run) const { return groups_[run.group]; }
  // With the count of the run's own updates.
  UpdateScalars ScalarsOf(const UpdateScalars& step, const GroupRun& run) const;

 private:
  TensorUpdates(const OptimizerConfig& rule, const Inventory& inventory, ParameterGroups groups,
                std::span<const int64_t> missed);
  bool WillBeLeftAlone(int tensor) const {
    return without_[tensor] != 0 || next_groups_[of_tensor_[tensor]].frozen;
  }

  const OptimizerConfig rule_;
  const Inventory& inventory_;
  const std::vector<int> of_tensor_;
  std::vector<std::vector<GroupRun>> group_runs_;   // by layer
  std::vector<std::vector<GroupRun>> tensor_runs_;  // the same

  std::vector<ParameterGroup> next_groups_;
  std::vector<uint8_t> without_;     // by tensor
  std::vector<ElemRange> as_zeros_;  // of the layer handed over last

  // The update in progress.
  std::vector<ParameterGroup> groups_;
  std::vector<uint8_t> left_alone_;  // by tensor
  std::vector<uint8_t> by_tensor_;   // by layer: which of the runs are taken
  std::vector<int64_t> missed_;      // by tensor
};

}  // namespace forebay
