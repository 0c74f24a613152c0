#include "forebay/swap/tile_map.h"

#include "forebay/tests/swap/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

TEST(TileMap, CutsEachLayerIntoTilesAndALastShorterOne) {
  const TileMap map(SmallInventory(), Layout::kBf16, kSmallTileElems);
  EXPECT_EQ(map.num_layers(), 4);
  EXPECT_EQ(map.layer_elems(0), 20480);
  EXPECT_EQ(map.layer_elems(1), 6144);
  EXPECT_EQ(map.layer_elems(3), 2048);
  EXPECT_EQ(map.num_tiles(), 10);
  EXPECT_EQ(map.first_tile(1), 5);
  EXPECT_EQ(map.first_tile(4), 10);
  EXPECT_EQ(map.tiles()[6].layer, 1);
  EXPECT_EQ(map.tiles()[6].first_elem, 4096);
  EXPECT_EQ(map.tiles()[6].num_elems, 2048);
}

TEST(TileMap, LaysTilesOneAfterAnotherOnDisk) {
  for (const Layout layout : {Layout::kBf16, Layout::kFp32}) {
    const TileMap map(SmallInventory(), layout, kSmallTileElems);
    int64_t weights = 0;
    int64_t state = 0;
    for (const Tile& tile : map.tiles()) {
      EXPECT_EQ(tile.weight_offset_bytes, weights);
      EXPECT_EQ(tile.state_offset_bytes, state);
      weights += map.WeightBytes(tile);
      state += map.StateBytes(tile);
    }
    EXPECT_EQ(map.weight_area_bytes(), weights);
    EXPECT_EQ(map.state_area_bytes(), state);
    EXPECT_EQ(weights + state, SmallInventory().num_padded_elems() * 12);
  }
}

TEST(TileMap, LaysTheTilesOfEachStripeOneAfterAnother) {
  for (const StripeWeights& weights : {StripeWeights{1, 1}, StripeWeights{3, 1, 2}}) {
    const TileMap map(SmallInventory(), Layout::kBf16, kSmallTileElems, weights);
    StripeBytes weight_ends(weights.size());
    StripeBytes state_ends(weights.size());
    for (const Tile& tile : map.tiles()) {
      EXPECT_EQ(tile.weight_offset_bytes, weight_ends[tile.stripe]);
      EXPECT_EQ(tile.state_offset_bytes, state_ends[tile.stripe]);
      weight_ends[tile.stripe] += map.WeightBytes(tile);
      state_ends[tile.stripe] += map.StateBytes(tile);
    }
    for (int stripe = 0; stripe < map.num_stripes(); ++stripe) {
      EXPECT_GT(weight_ends[stripe], 0);
      EXPECT_EQ(map.weight_area_bytes(stripe), weight_ends[stripe]);
      EXPECT_EQ(map.state_area_bytes(stripe), state_ends[stripe]);
    }
    EXPECT_EQ(map.weight_area_bytes() + map.state_area_bytes(),
              SmallInventory().num_padded_elems() * 12);
  }
}

// Tiles themselves are the same, so that nothing that is computed can tell.
TEST(TileMap, StripesChangeNothingButThePlaces) {
  const TileMap one(SmallInventory(), Layout::kBf16, kSmallTileElems);
  const TileMap two(SmallInventory(), Layout::kBf16, kSmallTileElems, {2, 1});
  ASSERT_EQ(one.num_tiles(), two.num_tiles());
  for (int i = 0; i < one.num_tiles(); ++i) {
    EXPECT_EQ(one.tiles()[i].layer, two.tiles()[i].layer);
    EXPECT_EQ(one.tiles()[i].first_elem, two.tiles()[i].first_elem);
    EXPECT_EQ(one.tiles()[i].num_elems, two.tiles()[i].num_elems);
  }
}

TEST(TileMap, PutsALayerAtTheSameBytesHoweverItIsTiled) {
  const TileMap small(SmallInventory(), Layout::kBf16, 2048);
  const TileMap large(SmallInventory(), Layout::kBf16, kDefaultTileElems);
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(small.tiles()[small.first_tile(layer)].weight_offset_bytes,
              large.tiles()[large.first_tile(layer)].weight_offset_bytes);
  }
  EXPECT_EQ(large.num_tiles(), 4);
  EXPECT_EQ(large.max_state_bytes(), 20480 * 10);
  EXPECT_EQ(small.max_state_bytes(), 2048 * 10);
}

TEST(TileMap, EveryPlaneOfEveryTileIsWholeBlocks) {
  for (const Layout layout : {Layout::kBf16, Layout::kFp32}) {
    const TileMap map(SmallInventory(), layout, kSmallTileElems);
    for (const Tile& tile : map.tiles()) {
      const StatePlanes planes = PlanesOf(layout, tile.num_elems);
      for (const int64_t bytes : {tile.weight_offset_bytes, tile.state_offset_bytes, planes.m,
                                  planes.v, map.WeightBytes(tile), map.StateBytes(tile)}) {
        EXPECT_EQ(bytes % kIoAlignBytes, 0);
      }
      EXPECT_EQ(planes.v + 4 * tile.num_elems, map.StateBytes(tile));
    }
  }
}

TEST(PlanesOf, PutsTheRemainderBeforeTheMoments) {
  const StatePlanes bf16 = PlanesOf(Layout::kBf16, 2048);
  EXPECT_EQ(bf16.remainder, 0);
  EXPECT_EQ(bf16.m, 4096);
  EXPECT_EQ(bf16.v, 12288);
  const StatePlanes fp32 = PlanesOf(Layout::kFp32, 2048);
  EXPECT_EQ(fp32.m, 0);
  EXPECT_EQ(fp32.v, 8192);
}

}  // namespace
}  // namespace forebay
