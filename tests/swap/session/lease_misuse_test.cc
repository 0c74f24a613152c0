// Leases that are used wrongly: each is told, or gives nothing, and nothing is lost.
#include <algorithm>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/tests/swap/session/session_fixture.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class LeaseMisuseTest : public SessionFixture {};

// An early return half-way through a tensor, and a lease that gives way to another.
TEST_F(LeaseMisuseTest, AWriteLeaseThatEndsWithoutReleaseWritesNothing) {
  const auto session = MustCreate();
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  const std::string name = inventory_.tensors()[0].name;
  for (const LeaseAccess access : {LeaseAccess::kWrite, LeaseAccess::kOverwrite}) {
    auto lease = session->Acquire(name, TensorPlane::kMaster, access);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::ranges::fill(lease->floats().first(lease->floats().size() / 2), -1.0f);
  }
  auto lease = session->Acquire(name, TensorPlane::kMaster, LeaseAccess::kWrite);
  ASSERT_TRUE(lease.ok()) << lease.status();
  std::ranges::fill(lease->floats(), -2.0f);
  auto other = session->Acquire(name, TensorPlane::kM, LeaseAccess::kWrite);
  ASSERT_TRUE(other.ok()) << other.status();
  *lease = *std::move(other);
  ASSERT_EQ(lease->Release(), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

TEST_F(LeaseMisuseTest, ALeaseThatOutlivesItsSessionStaysReadableAndWritesNothing) {
  auto session = MustCreate();
  ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
  ASSERT_EQ(session->Commit(1), absl::OkStatus());
  auto read = session->Acquire(kUp, TensorPlane::kM, LeaseAccess::kRead);
  auto written = session->Acquire(kUp, TensorPlane::kMaster, LeaseAccess::kWrite);
  ASSERT_TRUE(read.ok() && written.ok());
  session.reset();
  EXPECT_EQ(read->tensor().name, kUp);
  EXPECT_TRUE(SameBits(read->values(), expected_.At(kUp, TensorPlane::kM)));
  std::ranges::fill(written->floats(), -1.0f);
  EXPECT_EQ(ExitCodeOf(written->Release()), ExitCode::kUsage);
  EXPECT_FALSE(*written);
  EXPECT_EQ(read->Release(), absl::OkStatus());
  session = MustOpen();
  EXPECT_EQ(SeesTensors(*session, expected_), absl::OkStatus());
}

// A lease that was used wrongly gives nothing, and takes nothing with it.
TEST_F(LeaseMisuseTest, WhatALeaseDoesNotHaveIsEmpty) {
  const auto session = MustCreate();
  TensorLease none;
  EXPECT_TRUE(none.values().empty() && none.floats().empty() && none.bf16().empty());
  EXPECT_EQ(none.tensor().num_elems, 0);
  EXPECT_EQ(none.Release(), absl::OkStatus());
  none.Discard();
  auto weights = session->Acquire(kUp, TensorPlane::kW16, LeaseAccess::kRead);
  auto master = session->Acquire(kUp, TensorPlane::kMaster, LeaseAccess::kRead);
  ASSERT_TRUE(weights.ok() && master.ok());
  EXPECT_TRUE(weights->values().empty() && weights->floats().empty());
  EXPECT_FALSE(weights->bf16().empty());
  EXPECT_TRUE(master->floats().empty() && master->bf16().empty());
  EXPECT_FALSE(master->values().empty());
  const LeaseRequest requests[] = {{kUp, TensorPlane::kM, LeaseAccess::kWrite},
                                   {kDown, TensorPlane::kM, LeaseAccess::kWrite}};
  TensorLease leases[2];
  EXPECT_EQ(ExitCodeOf(session->AcquireAll(requests, {leases, 1})), ExitCode::kUsage);
  leases[1] = *std::move(master);
  EXPECT_EQ(ExitCodeOf(session->AcquireAll(requests, leases)), ExitCode::kUsage);
  EXPECT_FALSE(leases[0]);
  leases[1].Discard();
  EXPECT_EQ(session->AcquireAll(requests, leases), absl::OkStatus());
}

}  // namespace
}  // namespace forebay
