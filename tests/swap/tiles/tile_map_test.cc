#include "forebay/swap/tiles/tile_map.h"

#include "fmt/format.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

TEST(TileMap, CutsEachLayerIntoTilesAndALastShorterOne) {
  const TileMap map(SmallInventory(), Layout::kBf16, kSmallTileElems);
  EXPECT_EQ(map.num_layers(), 4);
  EXPECT_EQ(map.layer_elems(0), 20480);
  EXPECT_EQ(map.layer_elems(1), 8192);
  EXPECT_EQ(map.layer_elems(3), 2048);
  EXPECT_EQ(map.num_tiles(), 10);
  EXPECT_EQ(map.first_tile(1), 5);
  EXPECT_EQ(map.first_tile(4), 10);
  EXPECT_EQ(map.tiles()[6].layer, 1);
  EXPECT_EQ(map.tiles()[6].first_elem, 4096);
  EXPECT_EQ(map.tiles()[9].num_elems, 2048);
}

TEST(TileMap, LaysTilesOneAfterAnotherOnDisk) {
  for (const Layout layout : kLayouts) {
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
    if (layout == Layout::kBf16 || layout == Layout::kFp32) {
      EXPECT_EQ(weights + state, SmallInventory().num_padded_elems() * 12);
    }
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

TEST(TileMap, TilesAreWholeBlocks) {
  for (const Layout layout : kLayouts) {
    const TileMap map(SmallInventory(), layout, kSmallTileElems);
    for (const Tile& tile : map.tiles()) {
      for (const int64_t bytes : {tile.weight_offset_bytes, tile.state_offset_bytes,
                                  map.WeightBytes(tile), map.StateBytes(tile)}) {
        EXPECT_EQ(bytes % kIoAlignBytes, 0);
      }
      const TilePlanes& planes = map.PlanesOf(tile);
      const int64_t end = planes.OffsetBytes(planes.size(), tile.num_elems);
      EXPECT_LE(end, map.StateBytes(tile));
      EXPECT_GT(end, map.StateBytes(tile) - kIoAlignBytes);
    }
  }
}

TEST(TileMap, SmallTensorsHaveTilesOfTheirOwnWhereMomentsAreRounded) {
  const Inventory inventory = SmallInventory();
  const TileMap exact(inventory, Layout::kBf16, kSmallTileElems);
  const TileMap lossy(inventory, Layout::kInt8Moments, kSmallTileElems);
  for (const Tile& tile : exact.tiles()) EXPECT_FALSE(tile.small);
  for (int i = 0; i < lossy.num_tiles(); ++i) {
    const Tile& tile = lossy.tiles()[i];
    const LayerSpec& layer = inventory.layers()[tile.layer];
    EXPECT_EQ(tile.small, tile.first_elem >= layer.small_begin);
    EXPECT_TRUE(tile.small || tile.first_elem + tile.num_elems <= layer.small_begin);
    EXPECT_EQ(lossy.PlanesOf(tile).moments(),
              tile.small ? MomentFormat::kFp32 : MomentFormat::kInt8);
    for (const int64_t elem : {tile.first_elem, tile.first_elem + tile.num_elems - 1}) {
      EXPECT_EQ(lossy.TileAt(tile.layer, elem), i);
    }
  }
  for (const TensorSpec& tensor : inventory.tensors()) {
    const Tile& tile = lossy.tiles()[lossy.TileAt(tensor.layer, tensor.offset_elems)];
    EXPECT_EQ(tile.small, tensor.shape.size() == 1) << tensor.name;
  }
}

TEST(TileMap, RawLayersHaveTilesOfBytesAndNoState) {
  for (const Layout layout : kLayouts) {
    const Inventory inventory = WithRawLayers(SmallInventory());
    const TileMap with(inventory, layout, kSmallTileElems);
    const TileMap without(SmallInventory(), layout, kSmallTileElems);
    ASSERT_EQ(with.num_tiles(), without.num_tiles() + 3 + 1);
    EXPECT_EQ(with.weight_area_bytes(), without.weight_area_bytes() + 20480 + 4096);
    EXPECT_EQ(with.state_area_bytes(), without.state_area_bytes());
    EXPECT_EQ(with.max_weight_bytes(), without.max_weight_bytes());
    EXPECT_EQ(with.max_state_bytes(), without.max_state_bytes());
    for (int i = 0; i < with.num_tiles(); ++i) {
      const Tile& tile = with.tiles()[i];
      EXPECT_EQ(tile.raw, inventory.layers()[tile.layer].raw);
      for (const int64_t elem : {tile.first_elem, tile.first_elem + tile.num_elems - 1}) {
        EXPECT_EQ(with.TileAt(tile.layer, elem), i);
      }
      if (!tile.raw) continue;
      EXPECT_FALSE(tile.small);
      EXPECT_EQ(with.WeightBytes(tile), tile.num_elems);
      EXPECT_EQ(tile.num_elems % kIoAlignBytes, 0);
      EXPECT_EQ(with.StateBytes(tile), 0);
      EXPECT_EQ(with.PlanesOf(tile).size(), 1);
      EXPECT_EQ(with.PlanesOf(tile).kind(0), TilePlane::kRaw);
    }
  }
}

TEST(TileMap, RawTilesAreDealtToStripesByTheirBytes) {
  Inventory inventory;
  inventory.BeginLayer("weights");
  inventory.Add("w", {4096}, 0, true);
  inventory.BeginRawLayer("buffers");
  inventory.AddRaw("b", 4 * 8192);
  inventory.BeginLayer("more");
  inventory.Add("v", {4096}, 0, true);
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems, {1, 1});
  std::vector<int> stripes;
  for (const Tile& tile : tiles.tiles()) stripes.push_back(tile.stripe);
  // The four raw ones count as a tile of weights and state together.
  EXPECT_EQ(stripes, (std::vector<int>{0, 1, 1, 1, 1, 0}));
}

// Of 2048 elements: names, and where each begins in its half.
std::string PlanesText(Layout layout, MomentSet moments, bool small = false) {
  const TilePlanes planes(layout, moments, small);
  const char* const names[] = {"w", "r16", "master", "m", "v", "m_scale", "v_scale"};
  std::string text;
  for (int plane = 0; plane < planes.size(); ++plane) {
    text +=
        fmt::format("{}{} {}", plane == 0 ? "" : ", ", names[static_cast<int>(planes.kind(plane))],
                    planes.OffsetBytes(plane, 2048));
  }
  return text + fmt::format(": {}", planes.StateBytes(2048));
}

TEST(TilePlanes, LieOneAfterAnother) {
  EXPECT_EQ(PlanesText(Layout::kBf16, {}), "w 0, r16 0, m 4096, v 12288: 20480");
  EXPECT_EQ(PlanesText(Layout::kFp16, {}), "w 0, master 0, m 8192, v 16384: 24576");
  EXPECT_EQ(PlanesText(Layout::kFp32, {}), "w 0, m 0, v 8192: 16384");
  EXPECT_EQ(PlanesText(Layout::kBf16Moments, {}), "w 0, r16 0, m 4096, v 8192: 12288");
  EXPECT_EQ(PlanesText(Layout::kInt8Moments, {}),
            "w 0, r16 0, m 4096, v 6144, m_scale 8192, v_scale 8320: 12288");
  EXPECT_EQ(PlanesText(Layout::kInt8Moments, {}, /*small=*/true), PlanesText(Layout::kBf16, {}));
}

TEST(TilePlanes, AreOfTheMomentsThatTheOptimizerHas) {
  EXPECT_EQ(PlanesText(Layout::kBf16, {.m = true, .v = false}), "w 0, r16 0, m 4096: 12288");
  EXPECT_EQ(PlanesText(Layout::kInt8Moments, {.m = false, .v = true}),
            "w 0, r16 0, v 4096, v_scale 6144: 8192");
  EXPECT_EQ(PlanesText(Layout::kFp32, {.m = false, .v = false}), "w 0: 0");
}

}  // namespace
}  // namespace forebay
