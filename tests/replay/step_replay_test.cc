#include "forebay/replay/step_replay.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/aio/faults/limited_disk.h"
#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/aio/folding_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/offload/create_store.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/replay/must_plan.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

bool Never() {
  return false;
}

// A large embedding, seven blocks of two tiles with padding, and a small last layer.
Inventory ModelInventory() {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed", {20'000}, 0, true);
  for (int block = 0; block < 7; ++block) {
    const std::string name = "layers." + std::to_string(block);
    inventory.BeginLayer(name);
    inventory.Add(name + ".norm", {37}, 0, false);
    inventory.Add(name + ".up", {5900}, 0, true);
  }
  inventory.BeginLayer("head");
  inventory.Add("norm", {100}, 0, false);
  return inventory;
}

ReplayInputs SmallTiles(Layout layout, TierChoice gradients) {
  ReplayInputs inputs = {.inventory = ModelInventory(), .loss_reads_first = true};
  inputs.offload.layout = layout;
  inputs.offload.tile_elems = kSmallTileElems;
  inputs.offload.grad_dtype = WeightDType(layout);
  inputs.offload.gradients_tier = gradients;
  return inputs;
}

// Tiles that hold the pattern of step 0.
std::unique_ptr<TensorStore> MustCreateStore(const OffloadPlan& plan,
                                             const std::vector<std::string>& folders,
                                             Engine* engine) {
  auto store = TensorStore::Create(StoreOptionsOf(plan, folders), ModelInventory(), engine);
  FOREBAY_CHECK(store.ok() && WriteStep(**store, 0).ok());
  return *std::move(store);
}

struct Variant {
  std::string name;
  Layout layout;
  TierChoice gradients;
  ReplayCompute compute;
};

class StepReplayTest : public testing::TestWithParam<Variant> {
 protected:
  const TemporaryFolder folder_;
  const ReplayInputs inputs_ = SmallTiles(GetParam().layout, GetParam().gradients);
  const OffloadPlan plan_ = MustPlan(inputs_);
  MemoryBudget budget_{0};
};

TEST_P(StepReplayTest, EveryStepMovesWhatThePlanSaysInTheMemoryThatItSays) {
  const auto engine = CreateThreadsEngine({.num_threads = 2});
  auto replay =
      StepReplay::Create(plan_, {inputs_.offload, GetParam().compute, 2},
                         MustCreateStore(plan_, {folder_.Path("store")}, engine.get()), &budget_);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_LE(budget_.used_bytes(), BufferBytes(plan_));
  ASSERT_EQ((*replay)->Start(Never), absl::OkStatus());
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE(step);
    const auto replayed = (*replay)->RunStep(Never);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->transfers.read_bytes, plan_.read_bytes_per_step);
    EXPECT_EQ(replayed->transfers.write_bytes, plan_.write_bytes_per_step);
    EXPECT_EQ((*replay)->store().committed().step, step);
  }
}

TEST_P(StepReplayTest, ALargeStoreIsReplayedInASmallFile) {
  const auto inner = CreateSimulatedEngine({}, {}, nullptr);
  const int64_t common_bytes = 4 * plan_.tiles.max_state_bytes();
  auto common = OpenDirectFile(folder_.Path("common"),
                               {.create = true, .size_bytes = common_bytes, .direct = false});
  ASSERT_TRUE(common.ok()) << common.status();
  const int number = inner->AddFile(std::move(common->fd), folder_.Path("common"));
  FoldingEngine engine(inner.get(), {{.file = number,
                                      .size_bytes = common_bytes,
                                      .least_bytes = 64 << 10,
                                      .unfolded_name = kSealsName,
                                      .together_bytes = plan_.nvme_bytes}});
  StoreOptions options = StoreOptionsOf(plan_, {folder_.Path("store")});
  options.unfilled = true;
  auto store = TensorStore::Create(options, inputs_.inventory, &engine);
  ASSERT_TRUE(store.ok()) << store.status();
  auto replay =
      StepReplay::Create(plan_, {inputs_.offload, GetParam().compute}, *std::move(store), &budget_);
  ASSERT_TRUE(replay.ok()) << replay.status();
  ASSERT_EQ((*replay)->Start(Never), absl::OkStatus());
  for (int step = 1; step <= 2; ++step) {
    const auto replayed = (*replay)->RunStep(Never);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->transfers.read_bytes, plan_.read_bytes_per_step);
    EXPECT_EQ(replayed->transfers.write_bytes, plan_.write_bytes_per_step);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, StepReplayTest,
    testing::ValuesIn(std::vector<Variant>{
        {"Bf16", Layout::kBf16, TierChoice::kHost, ReplayCompute::kNone},
        {"Bf16Spilled", Layout::kBf16, TierChoice::kNvme, ReplayCompute::kNone},
        {"Bf16WithTheUpdate", Layout::kBf16, TierChoice::kHost, ReplayCompute::kAdamW},
        {"Fp32SpilledWithTheUpdate", Layout::kFp32, TierChoice::kNvme, ReplayCompute::kAdamW}}),
    [](const testing::TestParamInfo<Variant>& variant) { return variant.param.name; });

// A store that holds the pattern of step 0, and two replayed steps on it.
class StepReplayContents : public testing::Test {
 protected:
  bool HoldsThePatternAfterTwoSteps(ReplayCompute compute) {
    auto replay = MakeReplay(engine_.get(), compute);
    EXPECT_TRUE(replay.ok() && (*replay)->Start(Never).ok());
    for (int step = 0; step < 2; ++step) EXPECT_TRUE((*replay)->RunStep(Never).ok());
    return HoldsStep((*replay)->store(), 0);
  }

  absl::StatusOr<std::unique_ptr<StepReplay>> MakeReplay(
      Engine* engine, ReplayCompute compute = ReplayCompute::kNone) {
    return StepReplay::Create(plan_, {inputs_.offload, compute},
                              MustCreateStore(plan_, {folder_.Path("store")}, engine), &budget_);
  }

  const TemporaryFolder folder_;
  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({});
  const ReplayInputs inputs_ = SmallTiles(Layout::kBf16, TierChoice::kHost);
  const OffloadPlan plan_ = MustPlan(inputs_);
  MemoryBudget budget_{0};
};

TEST_F(StepReplayContents, WithoutArithmeticEveryByteComesBackAsItWas) {
  EXPECT_TRUE(HoldsThePatternAfterTwoSteps(ReplayCompute::kNone));
}

// Two disks that are simulated, one twice as fast as the other: every byte comes back, and each
// disk has its share of the work.
TEST_F(StepReplayContents, OnTwoDisksEveryByteComesBackAsItWas) {
  const std::vector<std::string> folders = {folder_.Path("fast"), folder_.Path("slow")};
  class CountingDisks : public LimitedDiskCalls {
   public:
    using LimitedDiskCalls::LimitedDiskCalls;
    int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                     int64_t offset_bytes) override {
      const bool fast = path.find("/fast/") != std::string_view::npos;
      (fast ? fast_bytes : slow_bytes) += static_cast<int64_t>(buffer.size());
      return LimitedDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
    }
    std::atomic<int64_t> fast_bytes = 0;
    std::atomic<int64_t> slow_bytes = 0;
  };
  CountingDisks disks({{folders[0], 2e9}, {folders[1], 1e9}});
  const auto engine = CreateThreadsEngine({.num_threads = 4}, &disks);
  ReplayInputs inputs = SmallTiles(Layout::kBf16, TierChoice::kNvme);
  inputs.stripe_weights = {2, 1};
  const OffloadPlan plan = MustPlan(inputs);
  auto replay = StepReplay::Create(plan, {inputs.offload},
                                   MustCreateStore(plan, folders, engine.get()), &budget_);
  ASSERT_TRUE(replay.ok() && (*replay)->Start(Never).ok());
  disks.fast_bytes = disks.slow_bytes = 0;
  for (int step = 0; step < 2; ++step) {
    const auto replayed = (*replay)->RunStep(Never);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->transfers.read_bytes, plan.read_bytes_per_step);
    EXPECT_EQ(replayed->transfers.write_bytes, plan.write_bytes_per_step);
  }
  const auto fast_share = static_cast<double>(disks.fast_bytes) /
                          static_cast<double>(disks.fast_bytes + disks.slow_bytes);
  EXPECT_NEAR(fast_share, 2.0 / 3, 0.05);
  EXPECT_TRUE(HoldsStep((*replay)->store(), 0));
}

TEST_F(StepReplayContents, WithAdamWTheStateIsUpdated) {
  EXPECT_FALSE(HoldsThePatternAfterTwoSteps(ReplayCompute::kAdamW));
}

TEST_F(StepReplayContents, AStopEndsItBetweenLayers) {
  for (const int stop_at : {0, 1, 5, 9, 12}) {
    auto replay = MakeReplay(engine_.get());
    ASSERT_TRUE(replay.ok() && (*replay)->Start(Never).ok());
    int asked = 0;
    const auto stopped = (*replay)->RunStep([&] { return asked++ == stop_at; });
    EXPECT_EQ(ExitCodeOf(stopped.status()), ExitCode::kInterrupted) << stop_at;
    // What was written in part was not committed; another store may begin where it was.
    replay->reset();
    ASSERT_TRUE(TensorStore::Remove({folder_.Path("store")}).ok());
  }
}

TEST_F(StepReplayContents, AFailedTransferIsTheResult) {
  FaultyDisk disk({.fail_call = 150});
  const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  auto replay = MakeReplay(engine.get());
  ASSERT_TRUE(replay.ok()) << replay.status();
  absl::Status status = (*replay)->Start(Never);
  for (int step = 0; step < 9 && status.ok(); ++step) {
    status = (*replay)->RunStep(Never).status();
  }
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("EIO"));
}

}  // namespace
}  // namespace forebay
