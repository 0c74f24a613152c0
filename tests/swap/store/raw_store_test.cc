// Raw layers in a store, in every layout: what reads them, what verifies and repairs them, and
// which calls are for other tensors.
#include <fcntl.h>

#include <cstring>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/swap/store/store_snapshot.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class RawStoreTest : public StoreFixture, public testing::WithParamInterface<Layout> {
 protected:
  std::unique_ptr<TensorStore> MustCreate() {
    auto store = TensorStore::Create(
        {.directories = {directory_}, .layout = GetParam(), .tile_elems = kSmallTileElems},
        WithRawLayers(SmallInventory()), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
};

// The bytes of a raw tensor as WriteTiles wrote them.
std::vector<std::byte> PatternOf(const TensorStore& store, const TensorSpec& tensor, int64_t step) {
  const TileMap& tiles = store.tiles();
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_elems));
  const TileRange range = TilesOf(tiles, tensor);
  for (int i = range.first; i < range.end; ++i) {
    std::vector<std::byte> tile(static_cast<size_t>(tiles.WeightBytes(tiles.tiles()[i])));
    FillPattern(tile, step, i, /*state=*/false);
    CopyFromTile(tiles, i, TileHalf::kWeights, tile, tensor, TensorPlane::kRaw, bytes);
  }
  return bytes;
}

TEST_P(RawStoreTest, ReadsAndVerifiesThem) {
  {
    const auto store = MustCreate();
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
  }
  const auto store = MustOpen();
  EXPECT_TRUE(HoldsStep(*store, 2));
  EXPECT_EQ(ReadTensors(*store), absl::OkStatus());
  const StoreSnapshot snapshot(store.get());
  ASSERT_EQ(WriteTiles(*store, 3), absl::OkStatus());
  for (const TensorSpec& tensor : store->inventory().tensors()) {
    if (!tensor.raw) continue;
    const std::vector<std::byte> expected = PatternOf(*store, tensor, 2);
    std::vector<std::byte> bytes(expected.size());
    ASSERT_EQ(store->ReadRaw(tensor, 0, bytes), absl::OkStatus());
    EXPECT_EQ(bytes, expected) << tensor.name;
    std::vector<std::byte> last(1);
    ASSERT_EQ(snapshot.ReadRaw(tensor, tensor.num_elems - 1, last), absl::OkStatus());
    EXPECT_EQ(last[0], expected.back()) << tensor.name;
  }
  MemoryBudget budget(0);
  std::vector<TileDamage> damaged;
  ASSERT_EQ(store->Scrub(&budget, {}, damaged), absl::OkStatus());
  EXPECT_TRUE(damaged.empty());
}

TEST_P(RawStoreTest, AFlippedByteIsFoundAndRepairedByTheStepBefore) {
  int tile = 0;
  int64_t at = 0;
  {
    const auto store = MustCreate();
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
    const TileMap& tiles = store->tiles();
    const TensorSpec& history = *store->inventory().Find("history");
    tile = tiles.TileAt(history.layer, history.offset_elems + history.num_elems - 1);
    at = static_cast<int64_t>(store->committed_slot()) * tiles.weight_area_bytes() +
         tiles.tiles()[tile].weight_offset_bytes + 17;
  }
  const auto fd = OpenFile(File("weights.fbs"), O_WRONLY);
  ASSERT_TRUE(fd.ok());
  const char wrong = static_cast<char>((*ReadWholeFile(File("weights.fbs"), 1 << 24))[at] ^ 1);
  ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(&wrong, 1)), at, "").ok());
  MemoryBudget budget(0);
  {
    const auto store = MustOpen();
    std::vector<TileDamage> damaged;
    ASSERT_EQ(store->Scrub(&budget, {}, damaged), absl::OkStatus());
    ASSERT_EQ(damaged.size(), 1u);
    EXPECT_EQ(damaged[0].tile, tile);
    EXPECT_EQ(damaged[0].layer, "buffers");
    EXPECT_THAT(damaged[0].message, HasSubstr("weights.fbs"));
  }
  const auto report = TensorStore::Repair({directory_}, engine_.get(), "", &budget, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->step, 1);
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

TEST_P(RawStoreTest, OtherReadsAreForOtherTensors) {
  const auto store = MustCreate();
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  const TensorSpec& mask = *store->inventory().Find("mask");
  std::vector<float> floats(1);
  std::vector<uint16_t> w16(1);
  std::vector<std::byte> bytes(4);
  for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kRaw}) {
    EXPECT_DEATH((void)store->ReadTensor(mask, plane, 0, floats), "internal error");
  }
  EXPECT_DEATH((void)store->ReadTensorW16(mask, 0, w16), "internal error");
  EXPECT_DEATH((void)store->ReadTilePlane(mask, TilePlane::kWeight, 0, 1, bytes), "internal error");
  EXPECT_DEATH((void)store->ReadRaw(*store->inventory().Find("head.norm"), 0, bytes),
               "internal error");
}

INSTANTIATE_TEST_SUITE_P(Layouts, RawStoreTest, testing::ValuesIn(kLayouts),
                         [](const auto& c) { return TestNameOf(c.param); });

}  // namespace
}  // namespace forebay
