// Writes a tile and waits for it: for what is written outside of a step's pipeline.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

// `weights` and `state`: all bytes of the tile's areas, aligned as the store's transfers are; seals
// them. StorageError. Requires: the store takes writes, and the tile is not written yet since then.
inline absl::Status WriteWholeTile(TensorStore& store, int tile, std::span<std::byte> weights,
                                   std::span<std::byte> state) {
  IoOp weight_op, state_op;
  store.StartWriteWeights(tile, weights, weight_op);
  store.StartWriteState(tile, state, state_op);
  absl::Status status = store.engine().Wait(weight_op);
  status.Update(store.engine().Wait(state_op));
  if (!status.ok()) return status;
  store.MarkWeightsWritten(tile);
  store.MarkStateWritten(tile);
  return status;
}

}  // namespace forebay
