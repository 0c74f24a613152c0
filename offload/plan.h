// The plan of a run: how much it needs and where everything will lie, for any inventory of tensors,
// before it starts. The arithmetic is explained in docs/design/plan.md. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/offload/commit_policy.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/offload/offload_options.h"
#include "forebay/offload/spilled_activations.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/step/module_schedule.h"
#include "forebay/step/step_schedule.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/window/step_transfers.h"

namespace forebay {

struct PlanTerm {
  std::string
      name;  // "gradients held (bf16)": also the MemoryBudget purpose where there is one buffer
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  std::string
      shrink_with;  // the flags that make it smaller: "--batch, --seq or --accum"; empty: none does
};

// One folder of the store.
struct PlanStripe {
  std::string folder;
  int64_t weight = 1;
  int64_t nvme_bytes = 0;  // of the store: exports lie elsewhere
};

struct OffloadPlan {
  TileMap tiles{Inventory(), Layout::kBf16, kDefaultTileElems};
  Placement placement;
  StepSchedule schedule;
  WindowOptions window;
  int num_staging_tiles = 4;
  int num_gradient_tiles = 2;  // OffloadedOptimizerOptions has both
  int64_t ram_budget_bytes = 0;
  StripeBytes gradient_area_bytes;  // of the scratch area, from its beginning on
  // The activations that wait in the scratch area, behind the gradients; none: num_spilled is 0.
  SpilledActivationsShape activations;
  int num_slots = kMostSlots;       // of the store; 1: --durability=none
  StoreFiles store_files;           // without records: of PlanInputs::keeps_nothing
  bool lacks_room_for_two = false;  // why it has one slot, when nobody said so
  CommitPace commit_pace;
  int64_t delay_update_from = 0;  // as OffloadOptions has it
  // Whether options leave it open of how many layers gradients are applied at once, or say so.
  bool may_speculate = false;
  int64_t commit_bytes = 0;  // that only a commit writes
  std::vector<PlanStripe> stripes;
  std::vector<PlanTerm> terms;  // sums to the totals
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  int64_t read_bytes_per_step = 0;
  // Includes its share of a commit where --commit_every says how many steps have one.
  int64_t write_bytes_per_step = 0;
  double io_s_per_step =
      0;  // the disk's time for those, where its speeds are known; 0: they are not
  // Its parts: up to the loss, and from there on.
  double forward_io_s = 0, backward_io_s = 0;
  double rated_tbw = 0;

  // The whole scratch area.
  StripeBytes ScratchBytes() const;
  // In all of its folders.
  int64_t StoreBytes() const;
};

// Models that a run writes beside the store.
struct PlannedExports {
  int64_t bytes = 0;          // at most, all that lie there at one time
  int64_t to_come_bytes = 0;  // of them, what a run that goes on does not have yet
  int64_t largest_file_bytes = 0;
  std::string folder;       // for messages
  std::string shrink_with;  // as PlanTerm has it
};

// The program itself needs this much (code, libraries, stacks, small allocations): measured, and
// part of every plan.
inline constexpr int64_t kRuntimeBytes = int64_t{96} << 20;

// A plan can be for a decoder, a module of another framework, or a list of names and shapes.
struct PlanInputs {
  Inventory inventory;
  PassKind pass = PassKind::kChain;
  Chain chain;                            // of kChain; the rest of it follows from the plan
  int64_t program_bytes = kRuntimeBytes;  // of the budget: what is resident without a plan
  std::vector<PlanTerm> step_memory;      // that computing a step takes of RAM, but for activations
  // kChain alone: bytes of one layer's activation, of all micro-batches of a step, where the walk's
  // ActivationStorage or memory like it has those that are kept; 0: they are in step_memory, and
  // the caller has those that the chain spills.
  int64_t activation_bytes = 0;
  // Above 0: activations lie in memory of another device, the chain says how many are spilled, and
  // these pass through so many buffers of RAM at most on their way to disk and back.
  int num_activation_buffers = 0;
  std::string activations_shrink_with;  // as PlanTerm has it
  // Bytes of the session's device that state may take, beside DeviceState::WorkBytes.
  int64_t device_state_bytes = 0;
  // The caller keeps the weights of each layer, once it was read, until the end of the step.
  bool reads_layers_once = false;
  // kChain alone: as WindowOptions has both. Requires: no tile is in two pieces.
  int64_t piece_elems = 0;
  bool copies_pieces = false;
  PlannedExports exports;
  // Nobody wants the state once the session has ended. With --durability=none, what `options` keep
  // in memory is in no file then.
  bool keeps_nothing = false;
  bool store_exists = false;  // its disks have room for it, and are not asked
};

// Fits a run with `options` into `limits`. When memory is short, buffers shrink
// and gradients go to NVMe before anything is refused; what is left over holds gradients, weights
// and state in RAM.
//
// The budget is options.ram_bytes, or kAutoShare of what is available. UsageError for options that
// contradict each other or match no tensor. DoesNotFitError (memory or disk) names the largest
// terms, the flags that shrink them, and the least --ram that works.
//
// Where the disks have no room for two slots, and options.durability leaves it open, the store has
// one: OffloadPlan::lacks_room_for_two.
//
// Where the shares of the folders are not fixed, and a disk has no room for its own, it gets what
// it has room for and the others the rest: `tiles` and `stripes` have the shares then.
absl::StatusOr<OffloadPlan> MakeOffloadPlan(const PlanInputs& inputs, const OffloadOptions& options,
                                            const MachineLimits& limits);

// The largest file that a run makes beside its store and exports: records, logs, the file that an
// engine is tried with.
inline constexpr int64_t kMostBytesOfSmallFiles = int64_t{2} << 20;

}  // namespace forebay
