// The layers whose gradients a plan has applied at once, in the hope that nothing is clipped. Pure.
//
// Not for: how that is done (optimizer/update_modes.h), or which number of layers is the fastest
// (train/plan/choose_settings.h).
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "forebay/offload/offload_options.h"
#include "forebay/step/step_schedule.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// Whether a gradient may be applied before the norm of all is known. Where steps are clipped, each
// of them would be computed twice, which is left to who asks for it.
bool MaySpeculate(const OffloadOptions& options, int num_slots);

// By layer, kAfterHand where `options` say so of so many: they are spread evenly, so that the disk
// has as much to do at any time of a pass. The first layer, whose gradient is the last to come, is
// the last to be one of them. Empty: nothing is said, or that it is none.
std::vector<UpdateTime> SpeculativeTimes(const OffloadOptions& options, int num_layers);

// Whether the layer is updated in the backward pass; `times` as above, or empty where any may be.
bool MayBeSpeculative(std::span<const UpdateTime> times, int layer);
// The tiles of the largest of those.
int TilesOfLargestSpeculativeLayer(const TileMap& tiles, std::span<const UpdateTime> times);
// Of all layers that are updated when they are read; `times` is not empty.
int TilesUpdatedOnRead(const TileMap& tiles, std::span<const UpdateTime> times);

// UsageError for options that contradict each other.
absl::Status CheckSpeculation(const OffloadOptions& options, int num_slots, int num_layers);

}  // namespace forebay
