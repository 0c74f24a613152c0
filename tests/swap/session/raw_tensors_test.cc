// Raw tensors beside weights and their state, in one store: sizes that fit no block, what is
// refused by name, and what damage and an abort do to them. Random calls and crashes are where
// those of all tensors are (tensor_session_random_test.cc, tensor_session_crash_test.cc).
#include <fcntl.h>

#include <algorithm>
#include <tuple>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/swap/session/session_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class RawTensorsTest : public SessionFixture {
 protected:
  RawTensorsTest() { inventory_ = WithRawLayers(SmallInventory()); }

  absl::Status WriteAndCommit(TensorSession& session, int64_t step) {
    FOREBAY_RETURN_IF_ERROR(SetEverything(session, expected_, static_cast<uint64_t>(step)));
    return session.Commit(step);
  }
};

// ---- Values

// Layout, stripes, slots.
class RawFormatsTest : public RawTensorsTest,
                       public testing::WithParamInterface<std::tuple<Layout, int, int>> {
 protected:
  std::vector<std::string> Folders() const {
    std::vector<std::string> folders;
    for (int i = 0; i < std::get<1>(GetParam()); ++i) {
      folders.push_back(folder_.Path(std::to_string(i)));
    }
    return folders;
  }
};

// Whether everything of the raw tiles that is no tensor's is zero.
bool HasZerosBetween(TensorStore& store) {
  const TileMap& tiles = store.tiles();
  Scratch scratch(tiles.max_weight_bytes());
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    const Tile& tile = tiles.tiles()[i];
    if (!tile.raw) continue;
    const auto bytes = scratch.first(tiles.WeightBytes(tile));
    IoOp op;
    store.StartReadWeights(i, bytes, IoClass::kDemand, op);
    if (!store.engine().Wait(op).ok() || !store.VerifyWeights(i, bytes).ok()) return false;
    for (const TensorSpec& tensor : store.inventory().tensors()) {
      if (tensor.layer != tile.layer) continue;
      const TilePart part = PartInTile(tiles, tensor, i);
      if (part.num_elems == 0) continue;
      std::ranges::fill(bytes.subspan(static_cast<size_t>(part.first_in_tile),
                                      static_cast<size_t>(part.num_elems)),
                        std::byte{0});
    }
    if (std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; })) {
      return false;
    }
  }
  return true;
}

TEST_P(RawFormatsTest, KeepTheirBytesBesideTheWeights) {
  const auto [layout, num_folders, num_slots] = GetParam();
  {
    const auto session = TensorSession::Create(kPlenty,
                                               {.directories = Folders(),
                                                .layout = layout,
                                                .tile_elems = kSmallTileElems,
                                                .num_slots = num_slots},
                                               inventory_, engine_.get());
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_EQ(SeesTensors(**session, expected_), absl::OkStatus());  // zeros
    ASSERT_EQ(WriteAndCommit(**session, 1), absl::OkStatus());
    // Some bytes alone, which leaves the others what they are.
    auto lease = (*session)->Acquire("history", TensorPlane::kRaw, LeaseAccess::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_EQ(lease->writable_bytes().size(), 16000u);
    for (const size_t at : {0, 8191, 8192, 15999}) {
      lease->writable_bytes()[at] = expected_.Raw("history")[at] ^= std::byte{0x5a};
    }
    ASSERT_EQ(lease->Release(), absl::OkStatus());
    ASSERT_EQ((*session)->Commit(2), absl::OkStatus());
  }
  auto session = TensorSession::Open(kPlenty, Folders(), engine_.get());
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(SeesTensors(**session, expected_), absl::OkStatus());
  std::vector<std::byte> part(9000);
  ASSERT_EQ((*session)->ReadCommittedRaw("history", 7000, part), absl::OkStatus());
  EXPECT_TRUE(SameBytes(part, std::span(expected_.Raw("history")).subspan(7000)));
  session->reset();
  auto store = TensorStore::Open(Folders(), engine_.get());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(HoldsTensors(**store, expected_));
  EXPECT_TRUE(HasZerosBetween(**store));
}

INSTANTIATE_TEST_SUITE_P(Formats, RawFormatsTest,
                         testing::Combine(testing::Values(Layout::kBf16, Layout::kFp16,
                                                          Layout::kFp32),
                                          testing::Values(1, 2), testing::Values(1, 2)),
                         [](const auto& c) {
                           return fmt::format("{}_{}folders_{}slots",
                                              TestNameOf(std::get<0>(c.param)),
                                              std::get<1>(c.param), std::get<2>(c.param));
                         });

// The state of a foreign optimizer may be all that there is; and a tensor larger than all others
// together has room by itself.
TEST_F(RawTensorsTest, AreAStoreOfTheirOwn) {
  Inventory inventory;
  inventory.BeginRawLayer("state");
  inventory.AddRaw("none", 0);
  inventory.AddRaw("all", 100'001);
  StoreOptions options = Store(2, Layout::kFp32);
  PlainTensors expected(&inventory);
  {
    const auto session = TensorSession::Create({.memory_bytes = 8 * kSmallTileElems + (100 << 10)},
                                               options, inventory, engine_.get());
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_EQ(SetEverything(**session, expected, 1), absl::OkStatus());
    ASSERT_EQ((*session)->Commit(1), absl::OkStatus());
    const auto none = (*session)->Acquire("none", TensorPlane::kRaw, LeaseAccess::kWrite);
    EXPECT_TRUE(none.ok() && none->bytes().empty());
  }
  EXPECT_EQ(SeesTensors(*MustOpen(), expected), absl::OkStatus());
}

TEST_F(RawTensorsTest, AbortBringsCommittedBytesBack) {
  const auto session = MustCreate();
  ASSERT_EQ(WriteAndCommit(*session, 1), absl::OkStatus());
  PlainTensors lost = expected_;
  ASSERT_EQ(SetAll(*session, lost, "mask", TensorPlane::kRaw, 7), absl::OkStatus());
  ASSERT_EQ(SetAll(*session, lost, "flag", TensorPlane::kRaw, 7), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, lost), absl::OkStatus());
  ASSERT_EQ(session->Abort(), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
  ASSERT_EQ(session->Commit(2), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(RawTensorsTest, AreReadAsCommittedWhileTheNextStepIsWritten) {
  const auto session = MustCreate();
  ASSERT_EQ(WriteAndCommit(*session, 1), absl::OkStatus());
  PlainTensors next = expected_;
  ASSERT_EQ(SetAll(*session, next, "odd", TensorPlane::kRaw, 7), absl::OkStatus());
  std::vector<std::byte> bytes(3);
  ASSERT_EQ(session->ReadCommittedRaw("odd", 0, bytes), absl::OkStatus());
  EXPECT_EQ(bytes, expected_.Raw("odd"));
  // Nobody gets the bytes behind the end, which the next tensor's alignment leaves.
  for (const int64_t first : {-1, 1, 3}) {
    EXPECT_EQ(ExitCodeOf(session->ReadCommittedRaw("odd", first, bytes)), ExitCode::kUsage);
  }
  ASSERT_EQ(session->Commit(2), absl::OkStatus());
  ASSERT_EQ(session->ReadCommittedRaw("odd", 0, bytes), absl::OkStatus());
  EXPECT_EQ(bytes, next.Raw("odd"));
}

// A trainer that writes all of its state in a step, its buffers too, copies nothing.
TEST_F(RawTensorsTest, AreWrittenOnceInAStepThatSetsThem) {
  const auto session = MustCreate();
  ASSERT_EQ(WriteAndCommit(*session, 1), absl::OkStatus());
  const int64_t slot_bytes =
      session->store().tiles().weight_area_bytes() + session->store().tiles().state_area_bytes();
  EXPECT_EQ(session->stats().write_bytes, slot_bytes);
  EXPECT_EQ(session->stats().copied_bytes, 0);
}

// ---- Misuse

TEST_F(RawTensorsTest, WhatTheyLackIsRefusedByName) {
  const auto session = MustCreate();
  ASSERT_EQ(WriteAndCommit(*session, 1), absl::OkStatus());
  const auto names = [](const absl::Status& status, const std::string& tensor) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status), HasSubstr("'" + tensor + "'"));
    return MessageOf(status);
  };
  for (const TensorPlane plane :
       {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV, TensorPlane::kW16}) {
    const auto lease = session->Acquire("mask", plane, LeaseAccess::kRead);
    EXPECT_THAT(names(lease.status(), "mask"), HasSubstr("TensorPlane::kRaw"));
    names(session->Expect("mask", plane), "mask");
  }
  const auto lease = session->Acquire(kUp, TensorPlane::kRaw, LeaseAccess::kWrite);
  EXPECT_THAT(names(lease.status(), kUp), HasSubstr("no raw tensor"));
  EXPECT_EQ(session->Expect("mask", TensorPlane::kRaw), absl::OkStatus());
  std::vector<float> floats(1);
  std::vector<Bf16> w16(1);
  std::vector<std::byte> bytes(1);
  names(session->ReadCommitted("mask", TensorPlane::kMaster, 0, floats), "mask");
  names(session->ReadCommitted("mask", TensorPlane::kRaw, 0, floats), "mask");
  names(session->ReadCommittedW16("mask", 0, w16), "mask");
  names(session->ReadCommittedRaw(kUp, 0, bytes), kUp);
}

TEST_F(RawTensorsTest, TheirLeasesHaveBytesAlone) {
  const auto session = MustCreate();
  auto written = session->Acquire("mean", TensorPlane::kRaw, LeaseAccess::kOverwrite);
  const auto read = session->Acquire("mean", TensorPlane::kRaw, LeaseAccess::kRead);
  auto master = session->Acquire(kUp, TensorPlane::kMaster, LeaseAccess::kWrite);
  ASSERT_TRUE(written.ok() && read.ok() && master.ok());
  EXPECT_TRUE(written->values().empty() && written->floats().empty() && written->bf16().empty());
  EXPECT_EQ(written->bytes().size(), 36u);
  EXPECT_EQ(written->writable_bytes().data(), written->bytes().data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(written->bytes().data()) % 64, 0u);
  EXPECT_EQ(read->bytes().size(), 36u);
  EXPECT_TRUE(const_cast<TensorLease&>(*read).writable_bytes().empty());
  EXPECT_TRUE(master->bytes().empty() && master->writable_bytes().empty());
  EXPECT_EQ(ExitCodeOf(session->Acquire("mean", TensorPlane::kRaw, LeaseAccess::kWrite).status()),
            ExitCode::kUsage);
}

TEST_F(RawTensorsTest, AWindowHasTheLayersBeforeThem) {
  for (const bool are_last : {true, false}) {
    Inventory inventory = inventory_;
    if (!are_last) {
      inventory.BeginLayer("behind");
      inventory.Add("behind.weight", {8, 8}, 0, true);
    }
    StoreOptions options = Store();
    options.directories = {folder_.Path(are_last ? "last" : "between")};
    auto store = TensorStore::Create(options, inventory, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
    Placement placement;
    placement.weights.assign(static_cast<size_t>((*store)->tiles().num_streamed_layers()),
                             Tier::kNvme);
    MemoryBudget budget(0);
    const absl::Status status =
        Swapper::Create({}, placement, store->get(), nullptr, &budget).status();
    if (are_last) {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
      EXPECT_THAT(MessageOf(status), HasSubstr("'behind'"));
    }
  }
}

// ---- Damage

TEST_F(RawTensorsTest, AFlippedByteIsNamedBeforeItIsUsed) {
  int64_t at = 0;
  {
    const auto session = MustCreate();
    ASSERT_EQ(WriteAndCommit(*session, 1), absl::OkStatus());
    const TileMap& tiles = session->store().tiles();
    const TensorSpec& mask = *inventory_.Find("mask");
    const Tile& tile = tiles.tiles()[tiles.TileAt(mask.layer, mask.offset_elems)];
    at = static_cast<int64_t>(session->store().committed_slot()) * tiles.weight_area_bytes() +
         tile.weight_offset_bytes + mask.offset_elems + 4096;
  }
  const std::string path = folder_.Path("store") + "/weights.fbs";
  const auto fd = OpenFile(path, O_WRONLY);
  ASSERT_TRUE(fd.ok());
  const auto before = static_cast<std::byte>((*ReadWholeFile(path, 1 << 24))[at]);
  ASSERT_EQ(before, expected_.Raw("mask")[4096]);
  const std::byte wrong[] = {before ^ std::byte{1}};
  ASSERT_TRUE(PwriteAll(fd->get(), wrong, at, path).ok());
  const auto session = MustOpen();
  const auto lease = session->Acquire("mask", TensorPlane::kRaw, LeaseAccess::kRead);
  EXPECT_EQ(ExitCodeOf(lease.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(lease.status()), HasSubstr("weights.fbs"));
  EXPECT_THAT(MessageOf(lease.status()), HasSubstr("'buffers'"));
  std::vector<std::byte> bytes(1);
  EXPECT_EQ(ExitCodeOf(session->ReadCommittedRaw("mask", 0, bytes)), ExitCode::kCorrupt);
  EXPECT_TRUE(session->Acquire("mean", TensorPlane::kRaw, LeaseAccess::kRead).ok());
}

}  // namespace
}  // namespace forebay
