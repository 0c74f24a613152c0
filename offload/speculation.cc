#include "forebay/offload/speculation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

int NumTiles(const TileMap& tiles, int layer) {
  return tiles.first_tile(layer + 1) - tiles.first_tile(layer);
}

}  // namespace

bool MaySpeculate(const OffloadOptions& options, int num_slots) {
  if (num_slots == 1 || options.delay_update_from > 0 || options.commit_every > 1) return false;
  if (options.gradients == GradientChoice::kAuto) {
    return options.clip == 0 && options.gradients_tier == TierChoice::kAuto;
  }
  return options.gradients == GradientChoice::kSpeculate;
}

std::vector<UpdateTime> SpeculativeTimes(const OffloadOptions& options, int num_layers) {
  const bool says_so =
      options.gradients == GradientChoice::kSpeculate || options.speculate_layers > 0;
  if (!says_so) return {};
  const int64_t num_speculative =
      options.speculate_layers > 0 ? options.speculate_layers : num_layers;
  std::vector<UpdateTime> times(static_cast<size_t>(num_layers), UpdateTime::kOnRead);
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool is_one =
        (layer + 1) * num_speculative / num_layers > layer * num_speculative / num_layers;
    if (is_one) times[static_cast<size_t>(layer)] = UpdateTime::kAfterHand;
  }
  return times;
}

bool MayBeSpeculative(std::span<const UpdateTime> times, int layer) {
  return times.empty() || times[layer] == UpdateTime::kAfterHand;
}

int TilesOfLargestSpeculativeLayer(const TileMap& tiles, std::span<const UpdateTime> times) {
  int most = 0;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    if (MayBeSpeculative(times, layer)) most = std::max(most, NumTiles(tiles, layer));
  }
  return most;
}

int TilesUpdatedOnRead(const TileMap& tiles, std::span<const UpdateTime> times) {
  int sum = 0;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    if (times[layer] == UpdateTime::kOnRead) sum += NumTiles(tiles, layer);
  }
  return sum;
}

absl::Status CheckSpeculation(const OffloadOptions& options, int num_slots, int num_layers) {
  const int64_t given = options.speculate_layers;
  if (given < 0 || given > num_layers) {
    return UsageError(
        fmt::format("--set=speculate_layers={}: the model has {} layers", given, num_layers));
  }
  if (options.gradients == GradientChoice::kSpeculate && num_slots == 1) {
    return UsageError(
        "--gradients=speculate: the run keeps one copy of its state (--durability=none), and what "
        "is "
        "applied before it is known to be right needs a second. Leave --gradients out");
  }
  if (given == 0 || MaySpeculate(options, num_slots)) return absl::OkStatus();
  return UsageError(fmt::format(
      "--set=speculate_layers={}: gradients are applied at once with --gradients=speculate, or "
      "without "
      "clipping (--clip=0), where there are two copies of the state and every step is committed. "
      "Leave it out",
      given));
}

}  // namespace forebay
