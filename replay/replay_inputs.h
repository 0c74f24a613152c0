// The planner's inputs for a replayed step (offload/plan.h): a model of which all weights and all
// state are on NVMe, so that the disk carries everything. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/offload/offload_options.h"
#include "forebay/offload/plan.h"
#include "forebay/swap/tiles/stripes.h"

namespace forebay {

// Finished gradients wait in RAM, every step is committed, and memory has no limit.
OffloadOptions ReplayOffload();

struct ReplayInputs {
  Inventory inventory;            // blocks of one shape between the first layer and the last
  bool loss_reads_first = false;  // tied embeddings
  // The size of one layer's activation; needed where offload.activations_tier is kNvme.
  int64_t activation_bytes = 0;
  OffloadOptions offload = ReplayOffload();
  StripeWeights stripe_weights = {1};  // of the folders that the store lies in

  int num_blocks() const { return inventory.num_layers() - 2; }
};

// UsageError, DoesNotFitError: as MakeOffloadPlan.
absl::StatusOr<OffloadPlan> PlanReplay(const ReplayInputs& inputs);

// The memory that a plan's step allocates: all but the program itself.
inline int64_t BufferBytes(const OffloadPlan& plan) {
  return plan.host_bytes - kRuntimeBytes;
}

// The same model with fewer blocks. Requires: 1 <= num_blocks <= those of `inputs`.
ReplayInputs WithFewerBlocks(const ReplayInputs& inputs, int num_blocks);

}  // namespace forebay
