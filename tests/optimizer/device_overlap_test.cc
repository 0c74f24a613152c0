// Copies of the tiles whose state lives on a GPU are made beside updates of others, as the emulated
// GPU's clock has it.
#include "forebay/device/emulation/counters.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using emulation::Counters;
using emulation::CountersNow;

// Of what was done since `before`: how long that took, against the time of its operations one by
// one.
double ShareSince(const Counters& before) {
  const Counters now = CountersNow();
  EXPECT_GT(now.busy_s, before.busy_s);
  return (now.awaited_s - before.awaited_s) / (now.busy_s - before.busy_s);
}

class DeviceOverlap : public testing::Test {
 protected:
  void Start(ResidentWrites writes) {
    const OffloadedRun::Options options = {.tile_elems = 2048, .state = Tiers::kDevice};
    run_ = *OffloadedRun::Start(options, folder_.path());
    const auto stats = run_->Backward(1);
    ASSERT_TRUE(stats.ok()) << stats.status();
    ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm), writes).ok());
    ASSERT_EQ(run_->store().tiles().first_tile(1), 10);
  }

  const TemporaryFolder folder_;
  std::unique_ptr<OffloadedRun> run_;
};

// A tile comes, is updated and goes back; two of them are on their way at a time.
TEST_F(DeviceOverlap, OfTheTilesOfALayer) {
  Start(ResidentWrites::kNow);
  const Counters before = CountersNow();
  ASSERT_TRUE(run_->UpdateLayer(0).ok());
  EXPECT_LT(ShareSince(before), 0.65);
}

TEST_F(DeviceOverlap, OfTilesWhoseStateStaysThere) {
  Start(ResidentWrites::kDeferred);
  const Counters before = CountersNow();
  ASSERT_TRUE(run_->UpdateLayer(0).ok());
  EXPECT_LT(ShareSince(before), 0.65);
}

}  // namespace
}  // namespace forebay
