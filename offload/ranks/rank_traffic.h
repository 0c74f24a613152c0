// The bytes that a rank sends to the others in a step, and receives from them: gradients, and
// weights where ranks divide the state. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/base/dtype.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/offload/ranks/gathered_weights.h"
#include "forebay/swap/tiles/inventory_parts.h"

namespace forebay {

struct RankTraffic {
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
};

// For each of `num_ranks` that have the whole state: (N-1)/N times twice the gradients, either way.
// `wire`: of gradients on their way.
RankTraffic TrafficOfSums(const Inventory& whole, int num_ranks, DType wire = DType::kF32);

// For rank `rank`, which has that part: about (N-1)/N times the gradients, and the weights of the
// layers that a step gathers, each as often as it stands in `gathers`. `weights`: as they are
// stored.
RankTraffic TrafficOfParts(const InventoryParts& parts, int rank, DType weights,
                           std::span<const int> gathers, DType wire = DType::kF32);

}  // namespace forebay
