// What a session may be asked for (tensor_session.h), and how its memory is divided. Not for use
// elsewhere.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/session/tensor_session.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// The weights and the state of the largest tile.
inline int64_t TilePairBytes(const TileMap& tiles) {
  return tiles.max_weight_bytes() + tiles.max_state_bytes();
}

struct SessionMemory {
  int64_t lease_bytes = 0;
  int num_cells = 0;  // of each cache
};
// DoesNotFitError.
absl::StatusOr<SessionMemory> Divide(const SessionOptions& options, const Inventory& inventory,
                                     const TileMap& tiles);

// UsageError: sessions lease what is stored, and a lossy layout stores codes.
absl::Status CheckIsExact(Layout layout);
// Whether a session can create such a store. UsageError.
absl::Status CheckStoreOptions(const StoreOptions& options, const Inventory& inventory);

}  // namespace forebay
