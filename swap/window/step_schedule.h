// The order in which one training step touches the layers of a model, and the bytes that this order
// costs on NVMe. Pure. The trainer executes a schedule, the plan counts with it, and swap-bench
// replays it without the computation, so that all three speak of the same transfers.
//
// Not for: the transfers themselves (swapper.h and optimizer/), or where things lie (placement.h).
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/tiles/tile_map.h"
#include "forebay/swap/window/window.h"

namespace forebay {

struct StepSchedule {
  std::vector<int> forward;  // layers in the order in which the forward pass acquires them
  // How many of them, at the end, are held together while the loss is made. Then every update of
  // the step before has been applied, and it may be committed.
  int num_loss_layers = 1;
  std::vector<int> backward;  // layers in the order in which the backward pass acquires them
  std::vector<int> handed;    // every layer once, in the order in which its gradient is complete

  // All accesses of the step, for one announcement: so that the window knows of them all when it
  // gives the first its buffer.
  std::vector<int> Accesses() const;
};

// The step of a model whose layers follow one another: the first takes the tokens in, the last one
// makes the loss. The loss has the gradient of the last layer as soon as it is known, and that of
// the first needs no weights, so neither is acquired by the backward pass. `loss_reads_first`: the
// loss needs the weights of the first layer too (tied embeddings). Requires: num_layers >= 3.
StepSchedule ChainSchedule(int num_layers, bool loss_reads_first);

// Buffers whose number only changes speed.
struct StepBuffers {
  int num_staging_tiles = 4;
  int num_block_buffers = 3;
};
// From comfortable to the least that works. Of several disks each wants some tiles in flight.
std::vector<StepBuffers> StepBufferChoices(int num_stripes);

// The window for the same models: all layers but the first and the last share the block buffers.
WindowOptions ChainWindow(int num_layers, const StepBuffers& buffers);

struct StepTransfers {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  // Of those written, what only a step that is committed writes: the tiles that live in RAM, the
  // checksums and the record.
  int64_t commit_bytes = 0;
};

// How often the swapper reads the weights of each layer (by layer) in a step that follows another:
// what the window still holds of a layer is not read again.
std::vector<int> CountWeightReads(const StepSchedule& schedule, const WindowOptions& window,
                                  const Placement& placement, const TileMap& tiles);

// All that one step, which is not computed twice, reads from NVMe and writes to it, from the moment
// when its gradients' norm is known to the same moment of the next step; its commit included.
// Nothing of it depends on how many slots the store has. Where updates are delayed: from the step
// on that does not see the one before.
StepTransfers CountTransfers(const StepSchedule& schedule, const WindowOptions& window,
                             const Placement& placement, const TileMap& tiles,
                             int64_t gradient_bytes_per_elem);

}  // namespace forebay
