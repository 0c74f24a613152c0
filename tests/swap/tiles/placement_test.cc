#include "forebay/swap/tiles/placement.h"

#include <algorithm>

#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int64_t kBlockElems = 8192;

// `num_layers` equal layers of four tiles; per layer 16 KiB gradients, 16 KiB weights, 80 KiB state
// in four tiles.
TileMap EqualLayers(int num_layers, const StripeWeights& stripe_weights = {1}) {
  Inventory inventory;
  for (int i = 0; i < num_layers; ++i) {
    inventory.BeginLayer("layers." + std::to_string(i));
    inventory.Add("layers." + std::to_string(i) + ".w", {kBlockElems}, 0, true);
  }
  return TileMap(inventory, Layout::kBf16, kBlockElems / 4, stripe_weights);
}
constexpr int64_t kLayerWeightBytes = kBlockElems * 2;
constexpr int64_t kLayerStateBytes = kBlockElems * 10;

std::string Spell(const std::vector<Tier>& tiers) {
  std::string text;
  for (const Tier tier : tiers) {
    text += tier == Tier::kHost ? 'H' : tier == Tier::kDevice ? 'D' : '.';
  }
  return text;
}

Placement MustPlace(const TileMap& tiles, const PlacementOptions& options) {
  auto placement = Place(tiles, options);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *std::move(placement);
}

TEST(Placement, WithoutMemoryEverythingStaysOnNvme) {
  const Placement placement = MustPlace(EqualLayers(8), {.host_bytes = 0});
  EXPECT_THAT(placement.weights, Each(Tier::kNvme));
  EXPECT_THAT(placement.state, Each(Tier::kNvme));
  EXPECT_THAT(placement.gradients, Each(Tier::kNvme));
  EXPECT_EQ(
      placement.host_weight_bytes + placement.host_state_bytes + placement.host_gradient_bytes, 0);
}

TEST(Placement, StateThatFindsNoRoomInMemoryGoesToTheDeviceEvenly) {
  const TileMap tiles = EqualLayers(4);
  const int64_t tile_bytes = kLayerStateBytes / 4;
  const PlacementOptions options = {.weights = TierChoice::kNvme,
                                    .gradients = TierChoice::kNvme,
                                    .host_bytes = 8 * tile_bytes + 1,
                                    .device_bytes = 4 * tile_bytes + 1};
  const Placement placement = MustPlace(tiles, options);
  EXPECT_EQ(Spell(placement.state), ".HDH.HDH.HDH.HDH");
  EXPECT_EQ(placement.host_state_bytes, 8 * tile_bytes);
  EXPECT_EQ(placement.device_state_bytes, 4 * tile_bytes);
  EXPECT_THAT(placement.weights, Each(Tier::kNvme));
  PlacementOptions without = options;
  without.state = TierChoice::kNvme;
  EXPECT_FALSE(MustPlace(tiles, without).AnyOnDevice());
  without.state = TierChoice::kAuto;
  without.device_bytes = 0;
  EXPECT_FALSE(MustPlace(tiles, without).AnyOnDevice());
}

TEST(Placement, StateOnTheDeviceIsThereWholeOrRefused) {
  const TileMap tiles = EqualLayers(4, {1, 1});
  PlacementOptions options = {.state = TierChoice::kDevice, .device_bytes = 4 * kLayerStateBytes};
  const Placement placement = MustPlace(tiles, options);
  EXPECT_THAT(placement.state, Each(Tier::kDevice));
  EXPECT_EQ(placement.host_state_bytes, 0);
  EXPECT_EQ(placement.device_state_bytes, 4 * kLayerStateBytes);
  --options.device_bytes;
  const auto refused = Place(tiles, options);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("Raise --gpu_mem by 1 B"));
}

TEST(Placement, StateOfNoBytesIsNeverRead) {
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("w", {kBlockElems, 1}, 0, true);
  for (const StripeWeights& weights : {StripeWeights{1}, StripeWeights{1, 1}}) {
    const TileMap tiles(inventory, Layout::kFp32, kBlockElems / 4, weights,
                        {.m = false, .v = false});
    for (const TierChoice choice : {TierChoice::kAuto, TierChoice::kHost, TierChoice::kNvme}) {
      const Placement placement =
          MustPlace(tiles, {.state = choice, .host_bytes = int64_t{1} << 20});
      EXPECT_THAT(placement.state, Each(Tier::kHost));
      EXPECT_EQ(placement.host_state_bytes, 0);
    }
  }
}

// Half of the state in RAM would be every other tile, which would be all of one stripe.
TEST(Placement, WhatStaysOnNvmeIsSpreadOverTheStripes) {
  for (const StripeWeights& weights : {StripeWeights{1, 1}, StripeWeights{2, 1}}) {
    const TileMap tiles = EqualLayers(12, weights);
    for (int eighths = 1; eighths < 8; ++eighths) {
      PlacementOptions options;
      options.weights = options.gradients = TierChoice::kNvme;
      options.host_bytes = 12 * kLayerStateBytes * eighths / 8;
      const Placement placement = MustPlace(tiles, options);
      EXPECT_EQ(placement.host_state_bytes,
                options.host_bytes / (kLayerStateBytes / 4) * (kLayerStateBytes / 4));
      std::vector<int64_t> on_nvme(weights.size());
      std::vector<int64_t> all(weights.size());
      for (int i = 0; i < tiles.num_tiles(); ++i) {
        ++all[tiles.tiles()[i].stripe];
        if (placement.state[i] == Tier::kNvme) ++on_nvme[tiles.tiles()[i].stripe];
      }
      for (size_t s = 0; s < weights.size(); ++s) {
        EXPECT_NEAR(static_cast<double>(on_nvme[s]),
                    static_cast<double>(all[s]) * (8 - eighths) / 8, 1.5)
            << "stripe " << s << " of " << weights.size() << ", " << eighths << "/8 in RAM";
      }
    }
  }
}

TEST(Placement, WithEnoughMemoryEverythingIsResident) {
  const int64_t all = 8 * (2 * kLayerWeightBytes + kLayerStateBytes);
  const Placement placement = MustPlace(EqualLayers(8), {.host_bytes = all});
  EXPECT_THAT(placement.weights, Each(Tier::kHost));
  EXPECT_THAT(placement.state, Each(Tier::kHost));
  EXPECT_THAT(placement.gradients, Each(Tier::kHost));
  EXPECT_EQ(placement.host_gradient_bytes, 8 * kLayerWeightBytes);
  EXPECT_EQ(placement.host_weight_bytes, 8 * kLayerWeightBytes);
  EXPECT_EQ(placement.host_state_bytes, 8 * kLayerStateBytes);
}

TEST(Placement, FillsGradientsBeforeWeightsBeforeState) {
  const TileMap tiles = EqualLayers(8);
  const Placement placement = MustPlace(tiles, {.host_bytes = 12 * kLayerWeightBytes});
  EXPECT_THAT(placement.gradients, Each(Tier::kHost));
  EXPECT_EQ(placement.host_weight_bytes, 4 * kLayerWeightBytes);
  EXPECT_EQ(placement.host_state_bytes, 0);
}

TEST(Placement, SpreadsWhatStaysOnNvmeEvenly) {
  const TileMap tiles = EqualLayers(8);
  const auto weights_with = [&](int num_resident) {
    return Spell(MustPlace(tiles, {.gradients = TierChoice::kNvme,
                                   .host_bytes = num_resident * kLayerWeightBytes})
                     .weights);
  };
  EXPECT_EQ(weights_with(1), ".......H");
  EXPECT_EQ(weights_with(2), "...H...H");
  EXPECT_EQ(weights_with(4), ".H.H.H.H");
  EXPECT_EQ(weights_with(6), ".HHH.HHH");
}

TEST(Placement, PlacesStateByTile) {
  const Placement placement = MustPlace(EqualLayers(2), {.weights = TierChoice::kNvme,
                                                         .gradients = TierChoice::kNvme,
                                                         .host_bytes = kLayerStateBytes});
  EXPECT_EQ(Spell(placement.state), ".H.H.H.H");
}

TEST(Placement, UsesWhatALargeLayerCannot) {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed", {10 * kBlockElems}, 0, true);
  for (int i = 0; i < 4; ++i) {
    inventory.BeginLayer("layers." + std::to_string(i));
    inventory.Add("layers." + std::to_string(i), {kBlockElems}, 0, true);
  }
  inventory.BeginLayer("head");
  inventory.Add("head", {10 * kBlockElems}, 0, true);
  const TileMap tiles(inventory, Layout::kBf16, kBlockElems);
  const Placement placement = MustPlace(tiles, {.state = TierChoice::kNvme,
                                                .gradients = TierChoice::kNvme,
                                                .host_bytes = 4 * kLayerWeightBytes});
  EXPECT_EQ(Spell(placement.weights), ".HHHH.");
}

TEST(Placement, ReservesForcedResidencyBeforeAnythingElse) {
  const TileMap tiles = EqualLayers(4);
  const Placement placement = MustPlace(
      tiles, {.state = TierChoice::kHost, .host_bytes = 4 * kLayerStateBytes + kLayerWeightBytes});
  EXPECT_THAT(placement.state, Each(Tier::kHost));
  EXPECT_EQ(placement.host_gradient_bytes, kLayerWeightBytes);
  EXPECT_EQ(placement.host_weight_bytes, 0);
}

TEST(Placement, KeepsOffTheHostWhatIsToldToBeOnNvme) {
  const Placement placement = MustPlace(
      EqualLayers(4),
      {.weights = TierChoice::kNvme, .state = TierChoice::kNvme, .host_bytes = int64_t{1} << 40});
  EXPECT_THAT(placement.weights, Each(Tier::kNvme));
  EXPECT_THAT(placement.state, Each(Tier::kNvme));
  EXPECT_THAT(placement.gradients, Each(Tier::kHost));
}

TEST(Placement, ForcedResidencyThatDoesNotFitNamesTheNeed) {
  const auto placement = Place(EqualLayers(4), {.weights = TierChoice::kHost,
                                                .state = TierChoice::kHost,
                                                .host_bytes = 4 * kLayerStateBytes});
  EXPECT_EQ(ExitCodeOf(placement.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(placement.status()),
              HasSubstr(std::to_string(4 * (kLayerWeightBytes + kLayerStateBytes)) + " bytes"));
  EXPECT_THAT(MessageOf(placement.status()), HasSubstr("--ram"));
}

TEST(Placement, GradientsCountAtTheirOwnWidth) {
  const Placement placement =
      MustPlace(EqualLayers(4), {.gradient_bytes_per_elem = 4, .host_bytes = 4 * kBlockElems * 4});
  EXPECT_THAT(placement.gradients, Each(Tier::kHost));
  EXPECT_EQ(placement.host_weight_bytes, 0);
}

TEST(Placement, NeverTakesMoreThanItWasGivenAndWastesLessThanOneTile) {
  const CounterRng rng(7);
  for (uint64_t trial = 0; trial < 200; ++trial) {
    Inventory inventory;
    const auto num_layers = 1 + rng.Below(10 * trial, 12);
    for (uint64_t layer = 0; layer < num_layers; ++layer) {
      inventory.BeginLayer(std::to_string(layer));
      inventory.Add(std::to_string(layer),
                    {static_cast<int64_t>(1 + rng.Below(100'000 + 20 * trial + layer, 100'000))}, 0,
                    true);
    }
    const TileMap tiles(inventory, Layout::kBf16, 4096);
    const auto host_bytes = static_cast<int64_t>(rng.Below(10 * trial + 1, 2 * 14 * 100'000));
    const Placement placement = MustPlace(tiles, {.host_bytes = host_bytes});
    int64_t used = 0;
    int64_t smallest_on_nvme = INT64_MAX;
    for (int i = 0; i < tiles.num_tiles(); ++i) {
      const int64_t bytes = tiles.StateBytes(tiles.tiles()[i]);
      if (placement.state[i] == Tier::kHost) used += bytes;
      if (placement.state[i] == Tier::kNvme) smallest_on_nvme = std::min(smallest_on_nvme, bytes);
    }
    EXPECT_EQ(used, placement.host_state_bytes);
    const int64_t left =
        host_bytes - used - placement.host_weight_bytes - placement.host_gradient_bytes;
    EXPECT_GE(left, 0);
    EXPECT_LT(left, smallest_on_nvme);
  }
}

}  // namespace
}  // namespace forebay
