#include "forebay/swap/tiles/placement.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

// One pass of Bresenham's rule over the items `among`: item i goes to the memory `to` when the
// bytes there then stay within its even share of the items so far. So what stays on NVMe is spread
// evenly, and the disk is busy the whole step. Takes bytes from `left_bytes`.
void SpreadOnce(const std::vector<int64_t>& sizes, std::span<const size_t> among, Tier to,
                std::vector<Tier>& tiers, int64_t& left_bytes) {
  // An item larger than everything that is left would hold a share that nobody can use.
  const auto candidate = [&, limit = left_bytes](size_t i) {
    return tiers[i] == Tier::kNvme && sizes[i] <= limit;
  };
  int64_t total_bytes = 0;
  for (const size_t i : among) {
    if (candidate(i)) total_bytes += sizes[i];
  }
  const int64_t share_bytes = std::min(left_bytes, total_bytes);
  int64_t seen_bytes = 0;
  int64_t placed_bytes = 0;
  for (const size_t i : among) {
    if (!candidate(i)) continue;
    seen_bytes += sizes[i];
    if (static_cast<__int128>(placed_bytes + sizes[i]) * total_bytes <=
        static_cast<__int128>(share_bytes) * seen_bytes) {
      tiers[i] = to;
      placed_bytes += sizes[i];
    }
  }
  left_bytes -= placed_bytes;
}

// The numbers of items, in order: all of them, or those of each stripe.
using Items = std::vector<size_t>;

Items AllOf(const std::vector<int64_t>& sizes) {
  Items items(sizes.size());
  std::iota(items.begin(), items.end(), size_t{0});
  return items;
}

// The even pattern of a pass could fall together with that of the stripes, and leave one of them
// everything and another nothing: so each stripe first gets its share of the memory by itself.
void SpreadByStripe(const std::vector<int64_t>& sizes, std::span<const Items> stripes, Tier to,
                    std::vector<Tier>& tiers, int64_t& left_bytes) {
  const auto bytes_on_nvme = [&](const Items& items) {
    int64_t bytes = 0;
    for (const size_t i : items) bytes += tiers[i] == Tier::kNvme ? sizes[i] : 0;
    return bytes;
  };
  std::vector<int64_t> stripe_bytes;
  for (const Items& stripe : stripes) stripe_bytes.push_back(bytes_on_nvme(stripe));
  const int64_t total_bytes = Total(stripe_bytes);
  if (total_bytes == 0) return;
  const int64_t memory_bytes = std::min(left_bytes, total_bytes);
  for (size_t i = 0; i < stripes.size(); ++i) {
    auto share_bytes =
        static_cast<int64_t>(static_cast<__int128>(memory_bytes) * stripe_bytes[i] / total_bytes);
    left_bytes -= share_bytes;
    SpreadOnce(sizes, stripes[i], to, tiers, share_bytes);
    left_bytes += share_bytes;
  }
}

// Each pass places at least one item as long as one fits, so this ends.
void Spread(const std::vector<int64_t>& sizes, std::span<const size_t> among, Tier to,
            std::vector<Tier>& tiers, int64_t& left_bytes) {
  for (int64_t last_bytes = -1; last_bytes != left_bytes;) {
    last_bytes = left_bytes;
    SpreadOnce(sizes, among, to, tiers, left_bytes);
  }
}

// Moves as much as fits of what is left on NVMe to the memory `to`. Returns the bytes.
int64_t Fill(const std::vector<int64_t>& sizes, std::span<const Items> stripes, Tier to,
             std::vector<Tier>& tiers, int64_t& left_bytes) {
  const int64_t before_bytes = left_bytes;
  if (stripes.size() > 1) SpreadByStripe(sizes, stripes, to, tiers, left_bytes);
  Spread(sizes, AllOf(sizes), to, tiers, left_bytes);
  return before_bytes - left_bytes;
}

// Places one kind of item and returns the host bytes it took; those of a forced choice were taken
// from `left_bytes` before. `tiers`: empty, or what was placed so far.
int64_t PlaceKind(TierChoice choice, const std::vector<int64_t>& sizes,
                  std::span<const Items> stripes, std::vector<Tier>& tiers, int64_t& left_bytes) {
  tiers.resize(sizes.size(), choice == TierChoice::kHost ? Tier::kHost : Tier::kNvme);
  if (Total(sizes) == 0) {  // the state of an optimizer without any: nothing to read
    tiers.assign(sizes.size(), Tier::kHost);
    return 0;
  }
  if (choice == TierChoice::kHost) return Total(sizes);
  if (choice != TierChoice::kAuto) return 0;
  return Fill(sizes, stripes, Tier::kHost, tiers, left_bytes);
}

absl::Status CheckDevice(const TileMap& tiles, const PlacementOptions& options) {
  FOREBAY_CHECK(options.weights != TierChoice::kDevice && options.gradients != TierChoice::kDevice);
  const int64_t needed_bytes = tiles.state_area_bytes();
  const bool fits = options.state != TierChoice::kDevice || needed_bytes <= options.device_bytes;
  if (fits) return absl::OkStatus();
  const int64_t room_bytes = std::max<int64_t>(options.device_bytes, 0);
  return DoesNotFitError(fmt::format(
      "placement: the optimizer's state is to lie on the GPU and needs {} ({} bytes) there, and "
      "the GPU's budget leaves {} ({} bytes) for it. Raise --gpu_mem by {}, or let what does not "
      "fit go elsewhere (--state_tier=auto)",
      FormatBinaryBytes(needed_bytes), needed_bytes, FormatBinaryBytes(room_bytes), room_bytes,
      FormatBinaryBytes(needed_bytes - room_bytes)));
}

}  // namespace

absl::StatusOr<Placement> Place(const TileMap& tiles, const PlacementOptions& options) {
  FOREBAY_RETURN_IF_ERROR(CheckDevice(tiles, options));
  std::vector<int64_t> gradient_sizes;
  std::vector<int64_t> weight_sizes;
  Items speculative;
  Placement placement;
  placement.update_times = options.update_times;
  placement.update_times.resize(static_cast<size_t>(tiles.num_streamed_layers()),
                                UpdateTime::kOnRead);
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    const bool waits = placement.WaitsForNorm(layer);
    if (!waits) speculative.push_back(static_cast<size_t>(layer));
    gradient_sizes.push_back(waits ? tiles.layer_elems(layer) * options.gradient_bytes_per_elem
                                   : 0);
    weight_sizes.push_back(tiles.layer_elems(layer) * WeightBytesPerElem(tiles.layout()));
  }
  std::vector<int64_t> state_sizes;
  std::vector<Items> stripes(static_cast<size_t>(tiles.num_stripes()));
  for (const Tile& tile : tiles.streamed_tiles()) {
    stripes[tile.stripe].push_back(state_sizes.size());
    state_sizes.push_back(tiles.StateBytes(tile));
  }

  const auto forced = [](TierChoice choice, const std::vector<int64_t>& sizes) {
    return choice == TierChoice::kHost ? Total(sizes) : 0;
  };
  const int64_t forced_gradient_bytes = forced(options.gradients, gradient_sizes);
  const int64_t forced_weight_bytes = forced(options.weights, weight_sizes);
  const int64_t forced_state_bytes = forced(options.state, state_sizes);
  const int64_t needed_bytes = forced_gradient_bytes + forced_weight_bytes + forced_state_bytes;
  int64_t left_bytes = std::max<int64_t>(options.host_bytes, 0) - needed_bytes;
  if (left_bytes < 0) {
    return DoesNotFitError(fmt::format(
        "placement: what must stay in RAM needs {} ({} bytes: weights {}, state {}, gradients {}), "
        "but the budget leaves {} "
        "({} bytes) for it. Raise --ram by {}, or let it go to NVMe (--weights_tier=auto, "
        "--state_tier=auto)",
        FormatBinaryBytes(needed_bytes), needed_bytes, FormatBinaryBytes(forced_weight_bytes),
        FormatBinaryBytes(forced_state_bytes), FormatBinaryBytes(forced_gradient_bytes),
        FormatBinaryBytes(needed_bytes + left_bytes), needed_bytes + left_bytes,
        FormatBinaryBytes(-left_bytes)));
  }
  if (options.weights == TierChoice::kAuto) {
    placement.weights.assign(weight_sizes.size(), Tier::kNvme);
    placement.host_weight_bytes = left_bytes;
    Spread(weight_sizes, speculative, Tier::kHost, placement.weights, left_bytes);
    placement.host_weight_bytes -= left_bytes;
  }
  placement.host_gradient_bytes =
      PlaceKind(options.gradients, gradient_sizes, {}, placement.gradients, left_bytes);
  for (const size_t layer : speculative) placement.gradients[layer] = Tier::kNvme;
  placement.host_weight_bytes +=
      PlaceKind(options.weights, weight_sizes, {}, placement.weights, left_bytes);
  placement.host_state_bytes =
      PlaceKind(options.state, state_sizes, stripes, placement.state, left_bytes);
  const bool may_be_on_device =
      options.state == TierChoice::kAuto || options.state == TierChoice::kDevice;
  if (may_be_on_device && options.device_bytes > 0) {
    int64_t device_bytes = options.device_bytes;
    placement.device_state_bytes =
        Fill(state_sizes, stripes, Tier::kDevice, placement.state, device_bytes);
  }
  return placement;
}

}  // namespace forebay
