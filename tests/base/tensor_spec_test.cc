#include "forebay/base/tensor_spec.h"

#include <string>
#include <vector>

#include "forebay/base/dtype.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

Inventory TwoLayers() {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed.weight", {100, 10}, 0, true);
  inventory.BeginLayer("layers.0");
  inventory.Add("norm.weight", {10}, 1, false);
  inventory.Add("up.weight", {30, 10}, 2, true);
  inventory.Add("down.weight", {10, 30}, 3, true);
  return inventory;
}

TEST(Inventory, TensorsStartAtAlignedOffsetsOfTheirLayer) {
  const Inventory inventory = TwoLayers();
  EXPECT_EQ(inventory.Find("embed.weight")->offset_elems, 0);
  EXPECT_EQ(inventory.Find("up.weight")->offset_elems, 0);
  EXPECT_EQ(inventory.Find("down.weight")->offset_elems, 320);  // 300, rounded up
}

TEST(Inventory, SmallTensorsLieBehindTheLargeOnes) {
  Inventory inventory = TwoLayers();
  EXPECT_EQ(inventory.layers()[0].small_begin, inventory.layers()[0].num_elems);
  EXPECT_EQ(inventory.layers()[1].small_begin, 2048);
  EXPECT_EQ(inventory.Find("norm.weight")->offset_elems, 2048);
  inventory.Add("bias", {10}, 4, false);
  inventory.Add("more.weight", {50, 40}, 5, true);  // moves them
  EXPECT_EQ(inventory.layers()[1].small_begin, 4096);
  EXPECT_EQ(inventory.Find("norm.weight")->offset_elems, 4096);
  EXPECT_EQ(inventory.Find("bias")->offset_elems, 4096 + 64);
  std::vector<std::string> names;
  for (const TensorSpec* tensor : TensorsInPlace(inventory, 1)) names.push_back(tensor->name);
  const std::vector<std::string> in_place = {"up.weight", "down.weight", "more.weight",
                                             "norm.weight", "bias"};
  EXPECT_EQ(names, in_place);
}

TEST(Inventory, ALayerOfSmallTensorsAloneBeginsWithThem) {
  Inventory inventory;
  inventory.BeginLayer("head");
  inventory.Add("norm", {2049}, 0, false);
  inventory.Add("scale", {}, 0, false);
  EXPECT_EQ(inventory.layers()[0].small_begin, 0);
  EXPECT_EQ(inventory.Find("scale")->offset_elems, 2112);
  EXPECT_EQ(inventory.layers()[0].num_elems, 4096);
}

TEST(Inventory, LayersArePaddedToWholeBlocks) {
  const Inventory inventory = TwoLayers();
  EXPECT_EQ(inventory.layers()[0].num_elems, 2048);
  EXPECT_EQ(inventory.layers()[1].num_elems, 4096);
  EXPECT_EQ(inventory.num_padded_elems(), 6144);
  EXPECT_EQ(inventory.num_params(), 1000 + 10 + 300 + 300);
}

TEST(Inventory, LayersKnowTheirTensorsAndTensorsTheirLayer) {
  const Inventory inventory = TwoLayers();
  ASSERT_EQ(inventory.num_layers(), 2);
  EXPECT_EQ(inventory.layers()[1].name, "layers.0");
  EXPECT_EQ(inventory.layers()[1].first_tensor, 1);
  EXPECT_EQ(inventory.layers()[1].num_tensors, 3);
  EXPECT_EQ(inventory.Find("down.weight")->layer, 1);
  EXPECT_FALSE(inventory.Find("norm.weight")->decay);
}

TEST(Inventory, FindReturnsNullForAnUnknownName) {
  EXPECT_EQ(TwoLayers().Find("nothing"), nullptr);
}

TEST(Inventory, RawTensorsAreBytesInWholeBlocksAndNoParameters) {
  Inventory inventory = TwoLayers();
  EXPECT_FALSE(inventory.has_raw_layer());
  const int64_t num_params = inventory.num_params();
  inventory.BeginRawLayer("buffers");
  inventory.AddRaw("flag", 1);
  inventory.AddRaw("mask", 4097);
  inventory.AddRaw("nothing", 0);
  EXPECT_EQ(inventory.AddRaw("count", 8), 7);
  const LayerSpec& layer = inventory.layers()[2];
  EXPECT_TRUE(inventory.has_raw_layer() && layer.raw);
  EXPECT_FALSE(inventory.layers()[1].raw);
  EXPECT_EQ(layer.num_elems, 8192);
  EXPECT_EQ(layer.small_begin, layer.num_elems);
  EXPECT_EQ(inventory.num_params(), num_params);
  EXPECT_EQ(inventory.num_raw_bytes(), 1 + 4097 + 8);
  EXPECT_EQ(inventory.num_padded_elems(), 6144 + 8192);
  const TensorSpec& mask = *inventory.Find("mask");
  EXPECT_TRUE(mask.raw && !mask.decay);
  EXPECT_EQ(mask.shape, Shape{4097});
  EXPECT_EQ(mask.num_elems, 4097);
  EXPECT_EQ(mask.offset_elems, 64);
  EXPECT_EQ(inventory.Find("count")->offset_elems, 64 + 4160);
  EXPECT_FALSE(inventory.Find("up.weight")->raw);
}

TEST(InventoryDeathTest, ATensorNeedsALayerOfItsKind) {
  Inventory inventory;
  EXPECT_DEATH(inventory.Add("x", {1}, 0, true), "internal error");
  EXPECT_DEATH(inventory.AddRaw("x", 1), "internal error");
  inventory.BeginLayer("layer");
  EXPECT_DEATH(inventory.AddRaw("x", 1), "internal error");
  inventory.BeginRawLayer("raw");
  EXPECT_DEATH(inventory.Add("x", {1}, 0, true), "internal error");
  EXPECT_DEATH(inventory.AddRaw("x", -1), "internal error");
}

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(NumElems({}), 1);
  EXPECT_EQ(NumElems({576, 1536}), 884'736);
  EXPECT_EQ(ToString(Shape{576, 1536}), "[576, 1536]");
  EXPECT_EQ(ToString(Shape{}), "[]");
}

TEST(DType, HasTheSpellingsOfSafetensorsAndTorch) {
  EXPECT_EQ(SafetensorsName(DType::kBF16), "BF16");
  EXPECT_EQ(TorchName(DType::kF16), "float16");
  EXPECT_EQ(SizeOf(DType::kF32), 4);
  EXPECT_EQ(SizeOf(DType::kBF16), 2);
}

}  // namespace
}  // namespace forebay
