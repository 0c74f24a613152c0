#include "forebay/replay/replay_plan.h"

#include <algorithm>
#include <limits>

#include "forebay/base/check.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

ReplayPlan PlanReplay(const Inventory& inventory, const ReplayOptions& options) {
  ReplayPlan plan;
  plan.options = options;
  plan.inventory = inventory;
  plan.tiles = TileMap(inventory, options.layout, options.tile_elems, options.stripe_weights);
  plan.window = ChainWindow(inventory.num_layers(), options.buffers);

  const int64_t gradient_bytes_per_elem = SizeOf(options.gradient_dtype);
  PlacementOptions placement;
  placement.weights = placement.state = TierChoice::kNvme;
  placement.gradients = options.gradients == Tier::kHost ? TierChoice::kHost : TierChoice::kNvme;
  placement.gradient_bytes_per_elem = gradient_bytes_per_elem;
  placement.host_bytes = std::numeric_limits<int64_t>::max();
  const absl::StatusOr<Placement> placed = Place(plan.tiles, placement);
  FOREBAY_CHECK(placed.ok());  // nothing is more than such a budget
  plan.placement = *placed;
  plan.schedule = ChainSchedule({.num_layers = inventory.num_layers(),
                                 .loss_reads_first = options.loss_reads_first,
                                 .update_times = UpdateTimesOf(plan.placement)});

  OffloadedOptimizerOptions optimizer;
  optimizer.gradient_dtype = options.gradient_dtype;
  optimizer.num_staging_tiles = options.buffers.num_staging_tiles;
  optimizer.gradient_area = plan.gradient_area();
  plan.gradient_area_bytes =
      OffloadedOptimizer::GradientAreaBytes(optimizer, plan.placement, plan.tiles);
  plan.folder_bytes =
      TensorStore::DiskBytes(plan.tiles, plan.num_slots(), plan.gradient_area_bytes);
  plan.transfers = CountTransfers(plan.schedule, plan.window, plan.placement, plan.tiles,
                                  gradient_bytes_per_elem);
  if (options.durability == ReplayDurability::kNone) {
    plan.transfers.write_bytes -= plan.transfers.commit_bytes;
  } else if (options.durability == ReplayDurability::kReplay) {
    const int64_t intent_bytes = TensorStore::IntentBytes(plan.tiles);
    plan.folder_bytes[0] += intent_bytes;
    plan.transfers.write_bytes += plan.placement.host_gradient_bytes + intent_bytes;
  }
  plan.store_bytes = Total(plan.folder_bytes);
  plan.largest_op_bytes = plan.tiles.max_state_bytes();

  plan.host_bytes = Swapper::WindowBytes(plan.window, plan.tiles) +
                    OffloadedOptimizer::StagingBytes(optimizer, plan.tiles) +
                    TensorStore::SealBytes(plan.tiles, plan.num_slots()) +
                    plan.placement.host_gradient_bytes + inventory.largest_layer_elems() * 4;
  return plan;
}

Inventory WithFewerBlocks(const Inventory& inventory, int num_blocks) {
  const int last = inventory.num_layers() - 1;
  FOREBAY_CHECK(num_blocks >= 1 && num_blocks <= last - 1);
  Inventory fewer;
  for (int layer = 0; layer <= last; ++layer) {
    if (layer > num_blocks && layer < last) continue;
    const LayerSpec& spec = inventory.layers()[layer];
    fewer.BeginLayer(spec.name);
    for (int i = 0; i < spec.num_tensors; ++i) {
      const TensorSpec& tensor = inventory.tensors()[spec.first_tensor + i];
      fewer.Add(tensor.name, tensor.shape, tensor.role, tensor.decay);
    }
  }
  return fewer;
}

}  // namespace forebay
