// A store far larger than this machine's memory: opening it reads what says what is committed, and
// no tile.
#include <cstdio>
#include <memory>

#include "forebay/aio/disk_calls.h"
#include "forebay/base/clock.h"
#include "forebay/base/format.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kTileBytes = int64_t{50} << 30;  // in both slots

// Keeps what is small: tiles stay holes in their files.
class SparseDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    const bool of_tiles = path.ends_with("weights.fbs") || path.ends_with("state.fbs");
    if (kind == IoKind::kWrite && of_tiles) return static_cast<int64_t>(buffer.size());
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
};

Inventory LargeInventory() {
  constexpr int kNumLayers = 16;
  constexpr int64_t kBytesPerElem = 2 * 12;
  Inventory inventory;
  for (int layer = 0; layer < kNumLayers; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    inventory.BeginLayer(name);
    inventory.Add(name, {kTileBytes / kBytesPerElem / kNumLayers / 1024, 1024}, 0, true);
  }
  return inventory;
}

class LargeStoreTest : public StoreFixture {};

TEST_F(LargeStoreTest, IsOpenedByItsMetadataAlone) {
  int64_t metadata_bytes = 0;
  {
    SparseDisk disk;
    const auto engine = CreateThreadsEngine({.num_threads = 2}, &disk);
    auto made = TensorStore::Create({.directories = {directory_}, .unfilled = true},
                                    LargeInventory(), engine.get());
    ASSERT_TRUE(made.ok()) << made.status();
    TensorStore& store = **made;
    EXPECT_GT(
        store.num_slots() * (store.tiles().weight_area_bytes() + store.tiles().state_area_bytes()),
        kTileBytes - (int64_t{1} << 20));
    Scratch scratch(store.tiles().max_state_bytes());
    for (int i = 0; i < store.tiles().num_tiles(); ++i) {
      const Tile& tile = store.tiles().tiles()[i];
      IoOp op;
      store.StartWriteWeights(i, scratch.first(store.tiles().WeightBytes(tile)), op, Sealed::kYes);
      ASSERT_EQ(engine->Wait(op), absl::OkStatus());
      store.MarkWeightsWritten(i);
      store.StartWriteState(i, scratch.first(store.tiles().StateBytes(tile)), op, Sealed::kYes);
      ASSERT_EQ(engine->Wait(op), absl::OkStatus());
      store.MarkStateWritten(i);
    }
    ASSERT_EQ(store.Commit({7, Json::object()}), absl::OkStatus());
    // The records, and both copies of the tables of one slot.
    metadata_bytes = 2 * (kCommitRecordBytes + TensorStore::SealBytes(store.tiles(), 1));
  }
  const auto engine = CreateThreadsEngine({.num_threads = 2});
  const Stopwatch stopwatch;
  const auto store = TensorStore::Open({directory_}, engine.get());
  const double seconds = stopwatch.Seconds();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->committed().step, 7);
  EXPECT_EQ(engine->stats().read_bytes, metadata_bytes);
  EXPECT_LT(metadata_bytes, 4 << 20);
  std::printf("a store of %s opened in %.3f s; read %s\n", FormatBytes(kTileBytes).c_str(), seconds,
              FormatBytes(engine->stats().read_bytes).c_str());
}

}  // namespace
}  // namespace forebay
