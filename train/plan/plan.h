// What a run will need and where everything will lie, before it starts. `plan` prints this object;
// `train` executes it. The arithmetic is explained in docs/architecture.md, "The plan".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/model/decoder_config.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/window/step_transfers.h"
#include "forebay/train/options/commit_policy.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/machine_limits.h"

namespace forebay {

struct PlanTerm {
  std::string
      name;  // "gradients held (bf16)": also the MemoryBudget purpose where there is one buffer
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  std::string
      shrink_with;  // the flags that make it smaller: "--batch, --seq or --accum"; empty: none does
};

// One folder of the swap area.
struct PlanStripe {
  std::string folder;
  int64_t weight = 1;
  int64_t nvme_bytes = 0;  // of the store: exports lie in OUT
};

struct Plan {
  TileMap tiles{Inventory(), Layout::kBf16, kDefaultTileElems};
  Placement placement;
  StepSchedule schedule;
  WindowOptions window;
  int num_staging_tiles = 4;
  int64_t tokens_per_step = 0;  // packed rows * seq, padding included
  int64_t ram_budget_bytes = 0;
  GradientArea gradient_area = GradientArea::kSpilled;  // kAll: --durability=replay
  StripeBytes gradient_area_bytes;                      // of it
  int num_slots = kMostSlots;                           // of the store; 1: --durability=none
  bool lacks_room_for_two = false;                      // why it has one slot, when nobody said so
  CommitPace commit_pace;
  int64_t delay_update_from = 0;  // as TrainOptions has it
  int64_t commit_bytes = 0;       // that only a commit writes
  std::vector<PlanStripe> stripes;
  std::vector<PlanTerm> terms;  // sums to the totals
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  // Models that OUT is to have room for, beside those that it has.
  int64_t exports_to_come = 0;
  int64_t read_bytes_per_step = 0;
  // Of a step; with its share of a commit where --commit_every says how many steps have one.
  int64_t write_bytes_per_step = 0;
  double io_s_per_step =
      0;  // the disk's time for those, where its speeds are known; 0: they are not
  double rated_tbw = 0;
  int64_t num_steps = 0;  // 0: not known
};

// What a run of `options` needs and how it fits into `limits`. Pure. When memory is short, buffers
// shrink and gradients go to NVMe before anything is refused; what is left over holds gradients,
// weights and state in RAM.
//
// The budget is options.ram_bytes, or kAutoShare of what is available. UsageError when --seq
// exceeds the model's positions. DoesNotFitError (memory or disk) names the largest terms, the
// flags that shrink them, and the least --ram that works.
//
// Where the disks have no room for two slots, and options.durability leaves it open, the store has
// one: Plan::lacks_room_for_two.
//
// Where the shares of the folders are not fixed, and a disk has no room for its own, it gets what
// it has room for and the others the rest: Plan::tiles and Plan::stripes have the shares then.
absl::StatusOr<Plan> MakePlan(const DecoderConfig& model, const TrainOptions& options,
                              const MachineLimits& limits);

// {"fits", "ram_budget_bytes", "host_bytes", "nvme_bytes", ..., "terms": [...], "stripes": [...]}
// (docs/cli.md).
Json ToJson(const Plan& plan);
// The table that `plan` and the start of `train` print.
std::string FormatPlan(const Plan& plan, const DecoderConfig& model, const TrainOptions& options);

// What the program itself needs (code, libraries, stacks, small allocations), measured; part of
// every plan.
inline constexpr int64_t kRuntimeBytes = int64_t{96} << 20;
// The largest file that a run makes beside its swap area and models: records, logs, the file that
// an engine is tried with.
inline constexpr int64_t kMostBytesOfSmallFiles = int64_t{2} << 20;

}  // namespace forebay
