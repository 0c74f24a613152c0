// A training run through LayerSession of what is no decoder: layers of odd shapes, whose gradients
// are a function of the weights that the step saw. So a weight that is a step too old or too new
// changes every digest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/offload/layer_session.h"
#include "forebay/step/layer_walk.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/tests/temporary_folder.h"

namespace forebay {

// Seven layers: a vector, odd matrices, a scalar, more tensors than one tile has. `has_raw`: and
// two with raw tensors.
Inventory ModuleInventory(bool has_raw = false);

struct ModuleSettings {
  OffloadOptions offload;
  bool is_tight = false;  // the least memory that works; otherwise all lies where it may
  // Groups have settings of their own that change from step to step, one tensor is frozen, and some
  // tensors, some layers too, get no gradient in some steps. The third step is skipped.
  bool is_uneven = false;
  bool has_raw = false;       // and raw tensors, which change in every step
  bool hands_parts = false;   // gradients are handed over in parts
  bool adds_tensors = false;  // AddGradient of halves in a changing order; otherwise Hand
  // With adds_tensors: each tensor's gradient comes from one of so many ranks, `rank` being this
  // one, another in each step. So the ranks together do what one does alone.
  int num_ranks = 1;
  int rank = 0;
  // Above 0: each rank has its part of the state, as ZeRO's stage of that number has it. Then
  // `ranks` are those ranks, and each of them calls Digest.
  int zero_stage = 0;
  Communicator* ranks = nullptr;
  // The optimizer's state lives on a GPU, one that is emulated, or the host's twin.
  bool state_on_device = false;
};

// Small tiles, no clipping.
ModuleSettings SmallSettings();

// The gradient of one element of `layer`, few bits and no zero of the wrong sign.
float ModuleGradient(uint32_t weight_bits, int64_t step, int layer);

// Owned by one thread. After an error of a call the run may be dropped and made anew: Open goes on
// from what is committed.
class ModuleRun {
 public:
  // In `folder`, which exists. The engine is `make_engine`'s, or one of threads.
  ModuleRun(std::string folder, ModuleSettings settings,
            std::function<std::unique_ptr<Engine>()> make_engine = {});
  ~ModuleRun();

  // Changes the options of the sessions that Open makes.
  void ChangeOptions(std::function<void(LayerSessionOptions&)> change) {
    change_options_ = std::move(change);
  }
  bool HasSession() const { return session_ != nullptr; }

  // Makes the store, or opens it.
  absl::Status Open();
  // Ends the session without a commit, as a kill does.
  void Drop();
  // Steps until `step` is released.
  absl::Status RunUntil(int64_t step);
  absl::Status RunStep(CommitWhen when = CommitWhen::kByPace);
  // Forward and backward, up to FinishBackward. Requires: BeginStep.
  absl::StatusOr<StepGradients> RunPass();
  StepUpdate UpdateOfStep();
  Json KeptOfStep() const { return {{"step", session().released_step() + 1}}; }
  // Whether an uneven run leaves the tensor as it is in this step.
  bool IsLeftAlone(int tensor, int64_t step) const;
  // Commits, and reads all of what is committed, of all ranks: 32 hexadecimal digits.
  std::string Digest();

  LayerSession& session() const { return *session_; }
  std::shared_ptr<LayerSession> TakeSession() { return std::move(session_); }
  const OffloadPlan& plan() const { return *plan_; }
  MemoryBudget& budget() { return budget_; }
  int num_repeated() const { return num_repeated_; }

 private:
  class Compute;
  absl::Status FillWith(const TensorSpec& tensor, int64_t first_elem,
                        std::span<float> values) const;
  absl::Status ReadWhole(int tensor, TensorPlane plane, std::span<float> values) const;
  absl::Status ChangeBuffers();
  bool IsSkipped(int64_t step) const;
  absl::Status Hand(int layer, std::span<const float> gradient);

  const std::string folder_;
  const ModuleSettings settings_;
  const Inventory whole_;
  const std::shared_ptr<const InventoryParts> parts_;  // nullptr: the state is not divided
  const std::function<std::unique_ptr<Engine>()> make_engine_;
  std::function<void(LayerSessionOptions&)> change_options_;
  MemoryBudget budget_{0};
  std::unique_ptr<Device> device_;
  MemoryBudget device_budget_{0};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<OffloadPlan> plan_;
  std::unique_ptr<Compute> compute_;
  std::shared_ptr<LayerSession> session_;
  std::unique_ptr<LayerWalk> walk_;
  int num_repeated_ = 0;
};

// The digest of a run of so many steps; "" where it fails, with a failure of the test.
std::string DigestAfter(const ModuleSettings& settings, int64_t num_steps);

// The plan of such a run.
absl::StatusOr<OffloadPlan> ModulePlan(const ModuleSettings& settings);

}  // namespace forebay
