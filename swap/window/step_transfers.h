// Counts what a step's operations move from and to NVMe, to the byte, through the window. Pure.
//
// Not for: the transfers themselves (swapper.h and optimizer/), or where things lie (placement.h).
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/step/step_schedule.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/tiles/tile_map.h"
#include "forebay/swap/window/window.h"

namespace forebay {

// Buffers whose number only changes speed.
struct StepBuffers {
  int num_staging_tiles = 4;
  int num_block_buffers = 3;
  int num_gradient_tiles = 2;  // that wait to be applied at once, where such layers are
};
// From comfortable to the least that works. Each of several disks wants some tiles in flight.
std::vector<StepBuffers> StepBufferChoices(int num_stripes);

// The window for the same models: all layers but the first and the last share the block buffers.
WindowOptions ChainWindow(int num_layers, const StepBuffers& buffers);
// The window for layers of any size: those of more than twice the median's have two buffers of
// their own, or one where there is one of them.
WindowOptions ModuleWindow(const TileMap& tiles, const StepBuffers& buffers);

struct TransferBytes {
  int64_t read = 0;
  int64_t write = 0;
};

struct StepTransfers {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  // The same, by when: up to the loss and with the commit, and from there on.
  TransferBytes forward, backward;
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
// on that does not see the one before. `activation_bytes`: of a layer's, where some are spilled.
StepTransfers CountTransfers(const StepSchedule& schedule, const WindowOptions& window,
                             const Placement& placement, const TileMap& tiles,
                             int64_t gradient_bytes_per_elem, int64_t activation_bytes = 0);

}  // namespace forebay
