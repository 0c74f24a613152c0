#include "forebay/offload/ranks/rank_traffic.h"

#include "forebay/collective/communicator.h"

namespace forebay {
namespace {

// A vector of `all` elements, of which the rank has `own`, in `bytes_per_elem` each.
struct Divided {
  int64_t all = 0;
  int64_t own = 0;
  int num_ranks = 1;
};

void AddReduceScatter(const Divided& vector, int64_t bytes_per_elem, RankTraffic& traffic) {
  traffic.sent_bytes += (vector.all - vector.own) * bytes_per_elem;
  traffic.received_bytes += (vector.num_ranks - 1) * vector.own * bytes_per_elem;
}

// The way back.
void AddAllGather(const Divided& vector, int64_t bytes_per_elem, RankTraffic& traffic) {
  traffic.sent_bytes += (vector.num_ranks - 1) * vector.own * bytes_per_elem;
  traffic.received_bytes += (vector.all - vector.own) * bytes_per_elem;
}

}  // namespace

RankTraffic TrafficOfSums(const Inventory& whole, int num_ranks, DType wire) {
  RankTraffic traffic;
  for (const LayerSpec& layer : whole.layers()) {
    if (layer.raw) continue;
    const Divided gradient = {layer.num_elems, EvenParts(layer.num_elems, num_ranks)[1], num_ranks};
    AddReduceScatter(gradient, SizeOf(wire), traffic);
    AddAllGather(gradient, SizeOf(wire), traffic);
  }
  return traffic;
}

RankTraffic TrafficOfParts(const InventoryParts& parts, int rank, DType weights,
                           std::span<const int> gathers, DType wire) {
  const auto divided = [&](int layer) {
    const std::span<const int64_t> offsets = parts.Offsets(layer);
    return Divided{offsets.back(), offsets[rank + 1] - offsets[rank], parts.num_parts()};
  };
  RankTraffic traffic;
  for (int layer = 0; layer < parts.whole().num_layers(); ++layer) {
    AddReduceScatter(divided(layer), SizeOf(wire), traffic);
  }
  for (const int layer : gathers) {
    AddAllGather(divided(layer), SizeOf(weights), traffic);
  }
  return traffic;
}

}  // namespace forebay
