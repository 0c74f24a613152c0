// When the updates of speculative layers (UpdateTime::kAfterHand) end: a disk reads their tiles as
// far ahead as staging has room, and writes each once its gradient was there. Pure.
#pragma once

#include <span>

namespace forebay {

// A tile's times, in seconds.
struct TileUpdate {
  double gradient_s = 0;  // when its gradient would be complete, if handing over never waited
  double read_s = 0;      // what the disk takes for it
  double write_s = 0;
};

// `tiles`: in the order in which their gradients are complete. The disk begins at `begin_s`. At
// most `num_staging_tiles` are read and not written yet. A gradient is handed over once that of
// `num_gradient_tiles` before it was applied, and computation waits until then. Returns when both
// the disk and the computation have ended. Requires: both numbers are positive.
double EndOfUpdates(std::span<const TileUpdate> tiles, double begin_s, int num_staging_tiles,
                    int num_gradient_tiles);

}  // namespace forebay
