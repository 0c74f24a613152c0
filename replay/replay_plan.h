// What a replayed step needs and moves: the plan of a training run reduced to what touches the
// disk. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/tiles/tile_map.h"
#include "forebay/swap/window/step_transfers.h"

namespace forebay {

// What a crash leaves of the run that is replayed, as --durability of it.
enum class ReplayDurability : uint8_t {
  kNone,    // nothing; one slot, and no commit in a step
  kStep,    // the step that was committed last
  kReplay,  // the same, and the gradients of the next
};
constexpr std::string_view NameOf(ReplayDurability durability) {
  return durability == ReplayDurability::kNone   ? "none"
         : durability == ReplayDurability::kStep ? "step"
                                                 : "replay";
}

// All weights and all state are on NVMe, so that the disk carries everything.
struct ReplayOptions {
  Layout layout = Layout::kBf16;
  int64_t tile_elems = kDefaultTileElems;
  DType gradient_dtype = DType::kBF16;
  StripeWeights stripe_weights = {1};  // of the folders that the store lies in
  Tier gradients = Tier::kHost;        // where finished gradients wait for their norm
  bool loss_reads_first = false;       // tied embeddings
  ReplayDurability durability = ReplayDurability::kStep;
  StepBuffers buffers;
};

struct ReplayPlan {
  ReplayOptions options;
  Inventory inventory;
  TileMap tiles{Inventory(), Layout::kBf16, kDefaultTileElems};
  StepSchedule schedule;
  WindowOptions window;
  Placement placement;
  StripeBytes gradient_area_bytes;
  StripeBytes folder_bytes;  // of the files that it stands for, by folder
  int64_t store_bytes = 0;   // in all
  int64_t host_bytes = 0;    // of all buffers
  StepTransfers transfers;   // of one step
  int64_t largest_op_bytes = 0;

  int num_slots() const { return options.durability == ReplayDurability::kNone ? 1 : kMostSlots; }
  GradientArea gradient_area() const {
    return options.durability == ReplayDurability::kReplay ? GradientArea::kAll
                                                           : GradientArea::kSpilled;
  }
  // Layers between the first and the last.
  int num_blocks() const { return inventory.num_layers() - 2; }
};

// Requires: at least three layers, of which those between the first and the last share a shape.
ReplayPlan PlanReplay(const Inventory& inventory, const ReplayOptions& options);

// The same model with fewer blocks. Requires: 1 <= num_blocks <= those of `inventory`.
Inventory WithFewerBlocks(const Inventory& inventory, int num_blocks);

}  // namespace forebay
