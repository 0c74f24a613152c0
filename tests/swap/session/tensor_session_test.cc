// What each call of a session promises. Random sequences of calls are in
// tensor_session_random_test.cc, crashes and faults in tensor_session_crash_test.cc.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "forebay/base/errors.h"
#include "forebay/tests/swap/session/session_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr char kEmbed[] = "embed.weight";  // 19500 elements in five tiles

using TensorSessionTest = SessionFixture;

// The pattern of an optimizer: all planes of a tensor at once.
absl::Status UpdateEverything(TensorSession& session, float value) {
  for (const TensorSpec& tensor : session.inventory().tensors()) {
    const LeaseRequest requests[] = {
        {tensor.name, TensorPlane::kMaster, LeaseAccess::kWrite},
        {tensor.name, TensorPlane::kM, LeaseAccess::kWrite},
        {tensor.name, TensorPlane::kV, LeaseAccess::kWrite},
    };
    TensorLease leases[3];
    FOREBAY_RETURN_IF_ERROR(session.AcquireAll(requests, leases));
    for (TensorLease& lease : leases) {
      for (float& x : lease.floats()) x += value;
      FOREBAY_RETURN_IF_ERROR(lease.Release());
    }
  }
  return absl::OkStatus();
}

// ---- Values

TEST_F(TensorSessionTest, ANewStoreHoldsZeros) {
  const auto session = MustCreate();
  EXPECT_FALSE(session->committed().has_value());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
  EXPECT_EQ(session->stats().read_bytes, 0);
}

TEST_F(TensorSessionTest, WhatWasReleasedIsSeenByTheNextAcquire) {
  const auto session = MustCreate();
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, WhatWasCommittedIsThereAfterOpening) {
  std::vector<std::pair<Layout, MomentSet>> formats;
  for (const Layout layout : {Layout::kBf16, Layout::kFp16, Layout::kFp32}) {
    for (const bool m : {true, false}) {
      for (const bool v : {true, false}) formats.push_back({layout, {.m = m, .v = v}});
    }
  }
  for (const auto& [layout, moments] : formats) {
    SCOPED_TRACE(testing::Message() << NameOf(layout) << " " << moments.m << moments.v);
    {
      StoreOptions store = Store(2, layout);
      store.moment_set = moments;
      auto created = TensorSession::Create(kPlenty, store, inventory_, engine_.get());
      ASSERT_TRUE(created.ok()) << created.status();
      const auto session = *std::move(created);
      ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
      ASSERT_EQ(session->Commit(7, Json{{"seen", 70}}), absl::OkStatus());
      ASSERT_EQ(session->Abort(), absl::OkStatus());
      auto lost = PlainTensors(&inventory_);
      ASSERT_EQ(SetAll(*session, lost, kUp, TensorPlane::kMaster, 2), absl::OkStatus());
    }
    {
      const auto session = MustOpen();
      ASSERT_TRUE(session->committed().has_value());
      EXPECT_EQ(session->committed()->step, 7);
      EXPECT_EQ(session->committed()->trainer, (Json{{"seen", 70}}));
      EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
    }
    ASSERT_TRUE(TensorStore::Remove({folder_.Path("store")}).ok());
  }
}

TEST_F(TensorSessionTest, TheStoredWeightIsTheMasterRounded) {
  const auto session = MustCreate();
  ASSERT_EQ(SetAll(*session, expected_, kEmbed, TensorPlane::kMaster, 1), absl::OkStatus());
  const auto lease = session->Acquire(kEmbed, TensorPlane::kW16, LeaseAccess::kRead);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::vector<float>& master = expected_.At(kEmbed, TensorPlane::kMaster);
  ASSERT_EQ(lease->bf16().size(), master.size());
  for (size_t i = 0; i < master.size(); ++i) {
    ASSERT_EQ(lease->bf16()[i], Split(master[i]).w16) << i;
  }
}

TEST_F(TensorSessionTest, NeighboursInOneTileAreLeasedForWritingAtOnce) {
  const auto session = MustCreate();
  {
    auto up = session->Acquire(kUp, TensorPlane::kMaster, LeaseAccess::kOverwrite);
    auto down = session->Acquire(kDown, TensorPlane::kMaster, LeaseAccess::kOverwrite);
    ASSERT_TRUE(up.ok() && down.ok());
    FillFloats(up->floats(), 1, 0);
    FillFloats(down->floats(), 2, 0);
    expected_.At(kUp, TensorPlane::kMaster).assign(up->values().begin(), up->values().end());
    expected_.At(kDown, TensorPlane::kMaster).assign(down->values().begin(), down->values().end());
    ASSERT_EQ(up->Release(), absl::OkStatus());
    ASSERT_EQ(down->Release(), absl::OkStatus());
  }
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, AReadLeaseKeepsItsValuesWhileTheTensorIsWritten) {
  const auto session = MustCreate();
  ASSERT_EQ(SetAll(*session, expected_, kUp, TensorPlane::kM, 1), absl::OkStatus());
  const std::vector<float> before = expected_.At(kUp, TensorPlane::kM);
  const auto lease = session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kRead);
  ASSERT_TRUE(lease.ok());
  ASSERT_EQ(SetAll(*session, expected_, kUp, TensorPlane::kM, 2), absl::OkStatus());
  EXPECT_TRUE(SameBits(lease->values(), before));
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, ADiscardedLeaseWritesNothing) {
  const auto session = MustCreate();
  auto lease = session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kWrite);
  ASSERT_TRUE(lease.ok());
  FillFloats(lease->floats(), 1, 0);
  lease->Discard();
  EXPECT_FALSE(*lease);
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, WhatIsExpectedIsReadOnce) {
  const auto session = MustCreate();
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  ASSERT_EQ(session->Abort(), absl::OkStatus());  // and with it the tiles in memory are gone
  const int64_t reads = session->stats().tile_reads;
  ASSERT_EQ(session->Expect(kEmbed, TensorPlane::kMaster), absl::OkStatus());
  EXPECT_EQ(session->stats().tile_reads, reads + 10);
  ASSERT_TRUE(session->Acquire(kEmbed, TensorPlane::kMaster, LeaseAccess::kRead).ok());
  EXPECT_EQ(session->stats().tile_reads, reads + 10);
}

// ---- Steps

TEST_F(TensorSessionTest, ATrainerThatWritesEverythingCopiesNothingAndWritesEachTileOnce) {
  const auto session = MustCreate();
  const TileMap& tiles = session->store().tiles();
  for (int step = 1; step <= 3; ++step) {
    ASSERT_EQ(UpdateEverything(*session, 1.0f), absl::OkStatus());
    ASSERT_EQ(session->Commit(step), absl::OkStatus());
    EXPECT_EQ(session->stats().write_bytes,
              step * (tiles.weight_area_bytes() + tiles.state_area_bytes()));
  }
  EXPECT_EQ(session->stats().copied_bytes, 0);
  EXPECT_EQ(session->stats().kept_bytes, 0);
  EXPECT_EQ(session->stats().read_bytes, 0);  // all of it stays in memory
}

TEST_F(TensorSessionTest, WhatIsLeftAloneIsCopiedByOneCommitAndKeptByTheNext) {
  const auto session = MustCreate();
  const TileMap& tiles = session->store().tiles();
  const int64_t all_bytes = tiles.weight_area_bytes() + tiles.state_area_bytes();
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  ASSERT_EQ(session->Commit(2), absl::OkStatus());
  EXPECT_EQ(session->stats().copied_bytes, all_bytes);
  EXPECT_EQ(session->stats().kept_bytes, 0);
  const int64_t written_bytes = session->stats().write_bytes;
  ASSERT_EQ(session->Commit(3), absl::OkStatus());
  EXPECT_EQ(session->stats().write_bytes, written_bytes);
  EXPECT_EQ(session->stats().kept_bytes, all_bytes);

  ASSERT_EQ(SetAll(*session, expected_, kUp, TensorPlane::kM, 5), absl::OkStatus());
  ASSERT_EQ(session->Commit(4), absl::OkStatus());
  // The state of one tile; then it is copied once more.
  EXPECT_EQ(session->stats().write_bytes, written_bytes + 10 * kSmallTileElems);
  ASSERT_EQ(session->Commit(5), absl::OkStatus());
  EXPECT_EQ(session->stats().write_bytes, written_bytes + 2 * 10 * kSmallTileElems);
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
  for (int64_t step = 6; step <= 7; ++step) ASSERT_EQ(session->Commit(step), absl::OkStatus());
}

TEST_F(TensorSessionTest, WithOneSlotNothingIsCopied) {
  const auto session = MustCreate(kPlenty, 1);
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  ASSERT_EQ(SetAll(*session, expected_, kUp, TensorPlane::kM, 5), absl::OkStatus());
  ASSERT_EQ(session->Commit(2), absl::OkStatus());
  ASSERT_EQ(session->Commit(3), absl::OkStatus());
  EXPECT_EQ(session->stats().copied_bytes, 0);
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, AbortBringsCommittedValuesBack) {
  const auto session = MustCreate();
  PlainTensors lost(&inventory_);
  ASSERT_EQ(SetEverything(*session, lost, 9), absl::OkStatus());
  ASSERT_EQ(session->Abort(), absl::OkStatus());  // to zeros
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  ASSERT_EQ(SetEverything(*session, lost, 8), absl::OkStatus());
  ASSERT_EQ(session->Abort(), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
  ASSERT_EQ(session->Commit(2), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, CommitAndAbortWaitForNoWriteLease) {
  const auto session = MustCreate();
  auto lease = session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kWrite);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(ExitCodeOf(session->Commit(1)), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(session->Abort()), ExitCode::kUsage);
  ASSERT_EQ(lease->Release(), absl::OkStatus());
  const auto reading = session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kRead);
  EXPECT_EQ(session->Commit(1), absl::OkStatus());
}

TEST_F(TensorSessionTest, AUserStateThatDoesNotFitLeavesTheWritesToBeCommitted) {
  const auto session = MustCreate();
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  EXPECT_EQ(ExitCodeOf(session->Commit(1, Json(std::string(4000, 'x')))), ExitCode::kUsage);
  EXPECT_FALSE(session->committed().has_value());
  ASSERT_EQ(SetAll(*session, expected_, kUp, TensorPlane::kM, 5), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(TensorSessionTest, AUserStateThatDoesNotFitDoesNotGiveUpWhatTheOneSlotHolds) {
  {
    const auto session = MustCreate(kPlenty, 1);
    ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
    ASSERT_EQ(session->Commit(1), absl::OkStatus());
    EXPECT_EQ(ExitCodeOf(session->Commit(2, Json(std::string(4000, 'x')))), ExitCode::kUsage);
    std::vector<float> values(100);
    EXPECT_EQ(session->ReadCommitted(kUp, TensorPlane::kM, 0, values), absl::OkStatus());
  }
  const auto session = TensorSession::Open(kPlenty, {folder_.Path("store")}, engine_.get());
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->committed()->step, 1);
  EXPECT_EQ(SeesTensors(**session, expected_), absl::OkStatus());
}

// The first call that a commit makes fails: the write of what was changed of a tile.
TEST_F(TensorSessionTest, TheErrorOfAWriteThatACommitMakesLastsUntilAbort) {
  int64_t num_calls = 0;  // before the commit
  for (const bool fails : {false, true}) {
    FaultPlan plan;
    if (fails) plan.fail_call = num_calls;
    FaultyDisk disk(plan);
    const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
    auto session = TensorSession::Create(kPlenty, Store(), inventory_, engine.get());
    ASSERT_TRUE(session.ok()) << session.status();
    PlainTensors values(&inventory_);
    ASSERT_EQ(SetAll(**session, values, kUp, TensorPlane::kM, 1), absl::OkStatus());
    auto reading = (*session)->Acquire(kUp, TensorPlane::kM, LeaseAccess::kRead);
    ASSERT_TRUE(reading.ok());
    num_calls = disk.num_calls();
    const absl::Status status = (*session)->Commit(1);
    EXPECT_EQ(ExitCodeOf(status), fails ? ExitCode::kStorage : ExitCode::kOk) << status;
    EXPECT_EQ(reading->Release(), status);
    EXPECT_EQ((*session)->Acquire(kDown, TensorPlane::kV, LeaseAccess::kRead).status(), status);
    ASSERT_EQ((*session)->Abort(), absl::OkStatus());
    EXPECT_EQ(SeesTensors(**session, fails ? expected_ : values), absl::OkStatus());
    session->reset();
    ASSERT_TRUE(TensorStore::Remove({folder_.Path("store")}).ok());
  }
}

// ---- Committed values beside the next step

TEST_F(TensorSessionTest, CommittedValuesAreReadWhileTheNextStepIsWritten) {
  const auto session = MustCreate();
  std::vector<float> values(100);
  EXPECT_EQ(ExitCodeOf(session->ReadCommitted(kEmbed, TensorPlane::kM, 0, values)),
            ExitCode::kUsage);
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  PlainTensors next(&inventory_);
  ASSERT_EQ(SetEverything(*session, next, 2), absl::OkStatus());
  for (const TensorPlane plane : kWritablePlanes) {
    ASSERT_EQ(session->ReadCommitted(kEmbed, plane, 4050, values), absl::OkStatus());
    EXPECT_TRUE(SameBits(values, std::span(expected_.At(kEmbed, plane)).subspan(4050, 100)));
  }
  std::vector<Bf16> w16(100);
  ASSERT_EQ(session->ReadCommittedW16(kEmbed, 4050, w16), absl::OkStatus());
  EXPECT_EQ(w16[7], Split(expected_.At(kEmbed, TensorPlane::kMaster)[4057]).w16);
  EXPECT_EQ(ExitCodeOf(session->ReadCommitted(kEmbed, TensorPlane::kM, 19450, values)),
            ExitCode::kUsage);
}

TEST_F(TensorSessionTest, OneSlotRefusesToAbortAndToReadWhatIsBeingOverwritten) {
  const auto session = MustCreate(kPlenty, 1);
  std::vector<float> values(100);
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  ASSERT_EQ(session->Abort(), absl::OkStatus());  // nothing to forget
  ASSERT_EQ(session->ReadCommitted(kUp, TensorPlane::kM, 0, values), absl::OkStatus());
  ASSERT_EQ(SetAll(*session, expected_, kUp, TensorPlane::kM, 5), absl::OkStatus());
  const absl::Status refused = session->ReadCommitted(kUp, TensorPlane::kM, 0, values);
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused), HasSubstr("one slot"));
  EXPECT_THAT(MessageOf(session->Abort()), HasSubstr("one slot"));
  ASSERT_EQ(session->Commit(2), absl::OkStatus());
  ASSERT_EQ(session->ReadCommitted(kUp, TensorPlane::kM, 0, values), absl::OkStatus());
  EXPECT_TRUE(SameBits(values, std::span(expected_.At(kUp, TensorPlane::kM)).first(100)));
}

// ---- Memory

TEST_F(TensorSessionTest, ATensorThatCanNeverFitIsAnErrorAtOnce) {
  const TileMap tiles(inventory_, Layout::kBf16, kSmallTileElems);
  const auto session = MustCreate({.memory_bytes = TensorSession::LeastMemoryBytes(tiles, 3200)});
  EXPECT_TRUE(session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kRead).ok());
  const auto lease = session->Acquire(kEmbed, TensorPlane::kM, LeaseAccess::kRead);
  EXPECT_EQ(ExitCodeOf(lease.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(lease.status()), HasSubstr("can never fit"));
  EXPECT_THAT(MessageOf(lease.status()), HasSubstr(kEmbed));
}

TEST_F(TensorSessionTest, TheLeastMemoryIsEnough) {
  const TileMap tiles(inventory_, Layout::kBf16, kSmallTileElems);
  const auto session = MustCreate({.memory_bytes = TensorSession::LeastMemoryBytes(tiles, 19500)});
  for (int step = 1; step <= 3; ++step) {
    ASSERT_EQ(SetEverything(*session, expected_, step), absl::OkStatus());
    ASSERT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
    ASSERT_EQ(session->Commit(step), absl::OkStatus());
  }
  EXPECT_LE(session->stats().peak_resident_bytes, TensorSession::LeastMemoryBytes(tiles, 19500));
}

TEST_F(TensorSessionTest, ASessionWithoutRoomForTilesLeavesNothingBehind) {
  const auto session = TensorSession::Create({.memory_bytes = 4 * kSmallTileElems}, Store(),
                                             inventory_, engine_.get());
  EXPECT_EQ(ExitCodeOf(session.status()), ExitCode::kDoesNotFit);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("store")));
}

TEST_F(TensorSessionTest, AsMuchIsLeasedAsWasSaid) {
  for (const auto& [lease_bytes, tensor] :
       {std::pair(int64_t{4} * 19500, kEmbed), std::pair(int64_t{1000}, "layers.0.norm")}) {
    {
      const auto session = MustCreate({.memory_bytes = 1 << 20, .lease_bytes = lease_bytes});
      const auto lease = session->Acquire(tensor, TensorPlane::kM, LeaseAccess::kRead);
      EXPECT_TRUE(lease.ok()) << lease.status();
      EXPECT_LE(session->stats().peak_resident_bytes, 1 << 20);
    }
    ASSERT_TRUE(TensorStore::Remove({folder_.Path("store")}).ok());
  }
}

TEST_F(TensorSessionTest, LeasesAreRoundedUpWithinTheMemory) {
  const TileMap tiles(inventory_, Layout::kBf16, kSmallTileElems);
  const int64_t of_tiles = TensorSession::LeastMemoryBytes(tiles, 1) - 4096;
  const auto error_of = [&](int64_t lease_memory_bytes, int64_t lease_bytes) {
    const auto session = TensorSession::Create(
        {.memory_bytes = of_tiles + lease_memory_bytes, .lease_bytes = lease_bytes}, Store(),
        inventory_, engine_.get());
    return ExitCodeOf(session.status());
  };
  EXPECT_EQ(error_of(8191, 4097), ExitCode::kDoesNotFit);
  EXPECT_EQ(error_of(8192, int64_t{1} << 62), ExitCode::kDoesNotFit);
  EXPECT_EQ(error_of(8192, 4097), ExitCode::kOk);
}

TEST_F(TensorSessionTest, AcquireWaitsUntilThereIsRoom) {
  const auto session = MustCreate({.memory_bytes = 1 << 20, .lease_bytes = 4 * 19500 + 4096});
  auto held = session->Acquire(kEmbed, TensorPlane::kM, LeaseAccess::kWrite);
  ASSERT_TRUE(held.ok());
  FillFloats(held->floats(), 1, 0);
  std::atomic<bool> has_room = false;
  std::thread other([&] {
    const auto lease = session->Acquire(kEmbed, TensorPlane::kV, LeaseAccess::kRead);
    EXPECT_TRUE(lease.ok()) << lease.status();
    has_room = true;
  });
  while (session->stats().waits == 0) std::this_thread::yield();
  EXPECT_FALSE(has_room);
  EXPECT_EQ(held->Release(), absl::OkStatus());
  other.join();
  EXPECT_TRUE(has_room);
  EXPECT_GT(session->stats().wait_s, 0);
  EXPECT_LE(session->stats().peak_leased_bytes, 4 * 19500 + 4096);
}

TEST_F(TensorSessionTest, AcquireThatWaitsForItselfSaysSo) {
  const auto session =
      MustCreate({.memory_bytes = 1 << 20, .lease_bytes = 4 * 19500 + 4096, .wait_limit_s = 0.05});
  {
    const auto held = session->Acquire(kEmbed, TensorPlane::kM, LeaseAccess::kRead);
    const auto lease = session->Acquire(kUp, TensorPlane::kV, LeaseAccess::kWrite);
    EXPECT_EQ(ExitCodeOf(lease.status()), ExitCode::kOutOfMemory);
    EXPECT_THAT(MessageOf(lease.status()), HasSubstr("1 leases"));
  }
  EXPECT_TRUE(session->Acquire(kUp, TensorPlane::kV, LeaseAccess::kWrite).ok());
}

// However many leases there are, it is their bytes that count.
TEST_F(TensorSessionTest, ManySmallLeasesAreOutAtOnce) {
  constexpr size_t kNumLeases = 50;
  Inventory inventory;
  inventory.BeginLayer("small");
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumLeases; ++i) {
    names.push_back("t" + std::to_string(i));
    inventory.Add(names.back(), {16}, 0, true);
  }
  StoreOptions options = Store();
  const TileMap tiles(inventory, options.layout, options.tile_elems);
  const auto session = TensorSession::Create(
      {.memory_bytes = TensorSession::LeastMemoryBytes(tiles, 16 * kNumLeases), .wait_limit_s = 0},
      options, inventory, engine_.get());
  ASSERT_TRUE(session.ok()) << session.status();
  std::vector<TensorLease> leases(kNumLeases);
  for (size_t i = 0; i < kNumLeases; ++i) {
    auto lease = (*session)->Acquire(names[i], TensorPlane::kM, LeaseAccess::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::ranges::fill(lease->floats(), static_cast<float>(i));
    leases[i] = *std::move(lease);
  }
  EXPECT_EQ((*session)->stats().leased_bytes, 64 * static_cast<int64_t>(kNumLeases));
  for (TensorLease& lease : leases) ASSERT_EQ(lease.Release(), absl::OkStatus());
  ASSERT_EQ((*session)->Commit(1), absl::OkStatus());
  std::vector<LeaseRequest> requests;
  for (const std::string& name : names)
    requests.push_back({.tensor = name, .plane = TensorPlane::kM});
  ASSERT_EQ((*session)->AcquireAll(requests, leases), absl::OkStatus());
  for (size_t i = 0; i < kNumLeases; ++i) {
    EXPECT_THAT(leases[i].values(), testing::Each(static_cast<float>(i)));
  }
}

// ---- Misuse

TEST_F(TensorSessionTest, WhatCannotBeLeasedIsNamed) {
  const auto session = MustCreate();
  const auto error = [&](std::string_view name, TensorPlane plane, LeaseAccess access) {
    const absl::Status status = session->Acquire(name, plane, access).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    return MessageOf(status);
  };
  EXPECT_THAT(error("nobody", TensorPlane::kM, LeaseAccess::kRead), HasSubstr("'nobody'"));
  EXPECT_THAT(error(kUp, TensorPlane::kW16, LeaseAccess::kWrite), HasSubstr("write the master"));
  const auto held = session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kWrite);
  EXPECT_THAT(error(kUp, TensorPlane::kM, LeaseAccess::kOverwrite), HasSubstr("already"));
  const LeaseRequest twice[] = {{kDown, TensorPlane::kV, LeaseAccess::kWrite},
                                {kDown, TensorPlane::kV, LeaseAccess::kWrite}};
  TensorLease leases[2];
  EXPECT_EQ(ExitCodeOf(session->AcquireAll(twice, leases)), ExitCode::kUsage);
  EXPECT_TRUE(session->Acquire(kDown, TensorPlane::kV, LeaseAccess::kWrite).ok());
  EXPECT_EQ(ExitCodeOf(session->Expect("nobody", TensorPlane::kM)), ExitCode::kUsage);
}

TEST_F(TensorSessionTest, RoundedMomentsAreNotLeased) {
  for (const Layout layout : {Layout::kBf16Moments, Layout::kInt8Moments}) {
    const auto created =
        TensorSession::Create(kPlenty, Store(2, layout), inventory_, engine_.get());
    EXPECT_EQ(ExitCodeOf(created.status()), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(created.status()), HasSubstr("Use an exact one: 'bf16'"));
    {
      auto store = TensorStore::Create(Store(2, layout), inventory_, engine_.get());
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
    }
    EXPECT_EQ(
        ExitCodeOf(TensorSession::Open(kPlenty, {folder_.Path("store")}, engine_.get()).status()),
        ExitCode::kUsage);
    ASSERT_TRUE(TensorStore::Remove({folder_.Path("store")}).ok());
  }
}

TEST_F(TensorSessionTest, MomentsThatTheStoreLacksAreErrors) {
  StoreOptions store = Store();
  store.moment_set = {.m = true, .v = false};
  const auto session = TensorSession::Create(kPlenty, store, inventory_, engine_.get());
  ASSERT_TRUE(session.ok()) << session.status();
  const auto lease = (*session)->Acquire(kUp, TensorPlane::kV, LeaseAccess::kRead);
  EXPECT_EQ(ExitCodeOf(lease.status()), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(lease.status()), HasSubstr("was created without it"));
}

TEST_F(TensorSessionTest, AnFp32StoreHasNoW16) {
  const auto session = MustCreate(kPlenty, 2, Layout::kFp32);
  const auto lease = session->Acquire(kUp, TensorPlane::kW16, LeaseAccess::kRead);
  EXPECT_EQ(ExitCodeOf(lease.status()), ExitCode::kUsage);
}

TEST_F(TensorSessionTest, OptionsThatNoStoreCanHaveAreErrors) {
  const auto error_of = [&](const StoreOptions& options, const Inventory& inventory) {
    return ExitCodeOf(TensorSession::Create(kPlenty, options, inventory, engine_.get()).status());
  };
  EXPECT_EQ(error_of(Store(), Inventory()), ExitCode::kUsage);
  EXPECT_EQ(error_of(Store(3), inventory_), ExitCode::kUsage);
  StoreOptions options = Store();
  options.tile_elems = 1000;
  EXPECT_EQ(error_of(options, inventory_), ExitCode::kUsage);
  options = Store();
  options.directories.clear();
  EXPECT_EQ(error_of(options, inventory_), ExitCode::kUsage);
  for (int i = 0; i <= kMaxStripes; ++i) {
    options.directories.push_back(folder_.Path(std::to_string(i)));
  }
  EXPECT_EQ(error_of(options, inventory_), ExitCode::kUsage);
  for (const StripeWeights& weights :
       {StripeWeights{0}, {-1}, {kMaxStripeWeight + 1}, StripeWeights{1, 1}}) {
    options = Store();
    options.stripe_weights = weights;
    EXPECT_EQ(error_of(options, inventory_), ExitCode::kUsage);
  }
  for (const StripeBytes& bytes : {StripeBytes{-1}, StripeBytes{4096, 4096}}) {
    options = Store();
    options.scratch_bytes = bytes;
    EXPECT_EQ(error_of(options, inventory_), ExitCode::kUsage);
  }
  Inventory twice = inventory_;
  twice.Add("head.norm", {10}, 0, true);
  EXPECT_EQ(error_of(Store(), twice), ExitCode::kUsage);
}

TEST_F(TensorSessionTest, DamageIsFoundBeforeItIsUsed) {
  {
    const auto session = MustCreate();
    ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
    ASSERT_EQ(session->Commit(1), absl::OkStatus());
  }
  const std::string path = folder_.Path("store") + "/state.fbs";
  const auto fd = OpenFile(path, O_WRONLY);
  ASSERT_TRUE(fd.ok());
  // In the m of the second tile, which holds embed.weight alone.
  const int64_t at = 10 * kSmallTileElems + 2 * kSmallTileElems;
  const auto before = static_cast<std::byte>((*ReadWholeFile(path, 1 << 24))[at]);
  const std::byte wrong[] = {before ^ std::byte{0x5a}};
  ASSERT_TRUE(PwriteAll(fd->get(), wrong, at, path).ok());
  const auto session = MustOpen();
  const auto lease = session->Acquire(kEmbed, TensorPlane::kM, LeaseAccess::kRead);
  EXPECT_EQ(ExitCodeOf(lease.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(lease.status()), HasSubstr("state.fbs"));
  EXPECT_TRUE(session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kRead).ok());
  // Nor is it copied into the next step.
  EXPECT_EQ(ExitCodeOf(session->Commit(2)), ExitCode::kCorrupt);
  EXPECT_EQ(session->committed()->step, 1);
  // What could not be read is nobody else's error, and may be read the next time.
  EXPECT_TRUE(session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kWrite).ok());
  const std::byte right[] = {before};
  ASSERT_TRUE(PwriteAll(fd->get(), right, at, path).ok());
  EXPECT_EQ(session->Commit(2), absl::OkStatus());
}

// ---- The store beneath

TEST_F(TensorSessionTest, AStoreKeepsNoTileThatIsNotTheSameInBothSlots) {
  auto store = TensorStore::Create(Store(), inventory_, engine_.get());
  ASSERT_TRUE(store.ok());
  ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
  ASSERT_EQ(WriteStep(**store, 2), absl::OkStatus());
  EXPECT_DEATH((*store)->KeepWeights(0), "SameChecksums");
  ASSERT_EQ(WriteTiles(**store, 3), absl::OkStatus());
  (*store)->DiscardWrites();
  EXPECT_TRUE(HoldsStep(**store, 2));
  ASSERT_EQ(WriteStep(**store, 4), absl::OkStatus());
  EXPECT_TRUE(HoldsStep(**store, 4));
}

}  // namespace
}  // namespace forebay
