#include "forebay/swap/tiles/inventory_parts.h"

#include <string>

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

// 8 blocks of large tensors and 1 of small ones; a layer of one block.
Inventory TwoLayers() {
  Inventory inventory;
  inventory.BeginLayer("block");
  inventory.Add("norm", {100}, 0, false);
  inventory.Add("first", {50, 100}, 1, true);  // ends within its third block
  inventory.Add("second", {7, 1500}, 2, true);
  inventory.BeginLayer("head");
  inventory.Add("last", {30}, 3, false);
  return inventory;
}

TEST(InventoryParts, AreCutBetweenBlocksAndDifferByOneAtMost) {
  const InventoryParts parts(TwoLayers(), 4);
  EXPECT_EQ(parts.whole().layers()[0].num_elems, 9 * kLayerAlignElems);
  EXPECT_THAT(parts.Offsets(0), ElementsAre(0, 3 * 2048, 5 * 2048, 7 * 2048, 9 * 2048));
  // The first rank has the most of every layer.
  EXPECT_THAT(parts.Offsets(1), ElementsAre(0, 2048, 2048, 2048, 2048));
}

TEST(InventoryParts, HaveEveryElementOnceAndInOrder) {
  for (const int num_parts : {1, 2, 3, 4, 9, 12}) {
    SCOPED_TRACE(num_parts);
    const InventoryParts parts(TwoLayers(), num_parts);
    for (size_t i = 0; i < parts.whole().tensors().size(); ++i) {
      const TensorSpec& tensor = parts.whole().tensors()[i];
      int64_t next = 0;
      for (int part = 0; part < num_parts; ++part) {
        const Inventory inventory = parts.Of(part);
        const TensorSpec& own = inventory.tensors()[i];
        EXPECT_EQ(own.name, tensor.name);
        EXPECT_EQ(own.decay, tensor.decay);
        EXPECT_EQ(IsSmall(own.shape), IsSmall(tensor.shape));
        if (own.num_elems == 0) continue;
        EXPECT_EQ(parts.FirstElem(static_cast<int>(i), part), next);
        EXPECT_EQ(own.offset_elems, tensor.offset_elems + next - parts.Offsets(tensor.layer)[part]);
        next += own.num_elems;
      }
      EXPECT_EQ(next, tensor.num_elems);
    }
    for (int part = 0; part < num_parts; ++part) {
      const Inventory inventory = parts.Of(part);
      for (int layer = 0; layer < 2; ++layer) {
        const auto offsets = parts.Offsets(layer);
        EXPECT_EQ(inventory.layers()[layer].num_elems, offsets[part + 1] - offsets[part]);
      }
    }
  }
}

TEST(InventoryParts, SayWhereElementsLie) {
  const InventoryParts parts(TwoLayers(), 4);
  // "second" begins at element 5056 of its layer: part 0 has 1088 of it, part 1 then 4096.
  const ElemPieces pieces = parts.PiecesOf(2, 1000, 200);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].part, 0);
  EXPECT_EQ(pieces[0].first_in_part, 1000);
  EXPECT_EQ(pieces[0].num_elems, 88);
  EXPECT_EQ(pieces[1].part, 1);
  EXPECT_EQ(pieces[1].first, 1088);
  EXPECT_EQ(pieces[1].first_in_part, 0);
  EXPECT_EQ(pieces[1].num_elems, 112);
  EXPECT_TRUE(parts.PiecesOf(2, 1000, 0).empty());
}

}  // namespace
}  // namespace forebay
