// A step of a trainer allocates nothing once its queues have seen their longest.
#include "forebay/base/errors.h"
#include "forebay/tests/allocation_counter.h"
#include "forebay/tests/swap/session/session_fixture.h"

namespace forebay {
namespace {

absl::Status OneStep(TensorSession& session) {
  for (const TensorSpec& tensor : session.inventory().tensors()) {
    FOREBAY_RETURN_IF_ERROR(session.Expect(tensor.name, TensorPlane::kMaster));
    const LeaseRequest requests[] = {
        {tensor.name, TensorPlane::kMaster, LeaseAccess::kWrite},
        {tensor.name, TensorPlane::kM, LeaseAccess::kWrite},
        {tensor.name, TensorPlane::kV, LeaseAccess::kOverwrite},
    };
    TensorLease leases[3];
    FOREBAY_RETURN_IF_ERROR(session.AcquireAll(requests, leases));
    for (TensorLease& lease : leases) {
      std::ranges::fill(lease.floats(), 1.0f);
      FOREBAY_RETURN_IF_ERROR(lease.Release());
    }
  }
  return absl::OkStatus();
}

TEST(TensorSessionAllocation, LeasesAllocateNothingAfterWarmUp) {
  const TemporaryFolder folder;
  const Inventory inventory = SmallInventory();
  const auto engine = CreateThreadsEngine({.num_threads = 2});
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
  // So little that tiles come and go.
  auto session =
      TensorSession::Create({.memory_bytes = TensorSession::LeastMemoryBytes(tiles, 3 * 19500)},
                            {.directories = {folder.Path("store")}, .tile_elems = kSmallTileElems},
                            inventory, engine.get());
  ASSERT_TRUE(session.ok()) << session.status();
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_EQ(OneStep(**session), absl::OkStatus());
    ASSERT_EQ((*session)->Commit(step), absl::OkStatus());
  }
  const int64_t before = num_allocations.load();
  const bool ok = OneStep(**session).ok();
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace forebay
