// Decides which tiles live in host memory, which on a device, and which stay on NVMe: before the
// first step, and for the whole run. Pure: `plan` prints the very object that `train` executes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/step/step_schedule.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

enum class Tier : uint8_t { kHost, kNvme, kDevice };
enum class TierChoice : uint8_t { kAuto, kHost, kNvme, kDevice };

// Weights are placed by layer (they are lent as whole layers), state and held gradients by tile.
struct Placement {
  std::vector<Tier> weights;    // per layer
  std::vector<Tier> state;      // per tile; the only one that may be on a device
  std::vector<Tier> gradients;  // per layer: where a finished gradient waits for the global norm
  // Per layer, or empty: all kOnRead, as the window reads them.
  // - kAfterHand, speculative: its gradient, of which `gradients` says kNvme, waits nowhere
  //   (UpdateModes::BeginSpeculation). Every step is committed then.
  // - kAfterNextHand, delayed: all layers are then, and the gradients of two steps wait at a time
  //   (UpdateModes::BeginDelayedUpdate).
  std::vector<UpdateTime> update_times;
  int64_t host_weight_bytes = 0;
  int64_t host_state_bytes = 0;
  int64_t host_gradient_bytes = 0;
  int64_t device_state_bytes = 0;

  UpdateTime UpdateTimeOf(int layer) const {
    return update_times.empty() ? UpdateTime::kOnRead : update_times[layer];
  }
  int64_t NumUpdated(UpdateTime time) const { return std::ranges::count(update_times, time); }
  bool WaitsForNorm(int layer) const { return UpdateTimeOf(layer) != UpdateTime::kAfterHand; }
  // The steps whose gradients wait at one time.
  int NumGradientSets() const { return NumUpdated(UpdateTime::kAfterNextHand) > 0 ? 2 : 1; }
  // Whether all weights and all state live in memory, and a step reads nothing of them.
  bool AllInMemory() const {
    return std::ranges::count(weights, Tier::kNvme) + std::ranges::count(state, Tier::kNvme) == 0;
  }
  bool AnyOnDevice() const { return std::ranges::count(state, Tier::kDevice) > 0; }
  // Whether the layer's gradient waits on NVMe.
  bool IsSpilled(int layer) const { return gradients[layer] == Tier::kNvme && WaitsForNorm(layer); }
};

struct PlacementOptions {
  TierChoice weights = TierChoice::kAuto;
  TierChoice state = TierChoice::kAuto;
  TierChoice gradients = TierChoice::kAuto;
  // Per layer, or empty: as Placement has them, except kAfterNextHand. The gradients of kAfterHand
  // wait nowhere; their weights, which are read three times in a step, come first of all.
  std::vector<UpdateTime> update_times;
  int64_t gradient_bytes_per_elem = 2;  // of all steps whose gradients wait at a time
  int64_t host_bytes = 0;               // what is left of the budget for residency
  int64_t device_bytes = 0;             // the same of a device's memory, for state
};

// Fills host memory in the order of value per byte: weights of speculative layers, gradients (a
// spilled byte costs a write and a read), weights, then state. State that finds no room there goes
// to the device as far as that has room. What stays on NVMe is spread evenly over the layers, and
// of state over the stripes. DoesNotFitError when a choice of kHost needs more than `host_bytes`,
// or one of kDevice more than `device_bytes`; the message names the need.
// Requires: kDevice is chosen for state alone.
absl::StatusOr<Placement> Place(const TileMap& tiles, const PlacementOptions& options);

}  // namespace forebay
