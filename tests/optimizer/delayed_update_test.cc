// Updates that are applied in the backward pass of the next step, which sees the weights before
// them: the result is that of AdamW in memory, and what a step sees is that of two steps before,
// whatever lives where.
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/optimizer/shut_state_disk.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class DelayedUpdateTest : public testing::Test {
 protected:
  // With what a new process would have: nothing but the store in folder `name`, or a new one.
  void Open(OffloadedRun::Options options = {}, DiskCalls* disk = nullptr,
            const std::string& name = "") {
    swapper_ = nullptr;
    run_ = nullptr;
    options.delayed = true;
    options.num_threads = options.num_io_threads = 2;
    auto run = OffloadedRun::Start(options, folder_.Path(name), disk);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
    auto swapper = run_->MakeSwapper();
    ASSERT_TRUE(swapper.ok()) << swapper.status();
    swapper_ = *std::move(swapper);
    run_->optimizer().modes().SetResidentWeights(swapper_->ResidentWeights());
  }
  InMemoryOptimizer& After(int64_t step) {
    while (static_cast<int64_t>(history_.size()) <= step) {
      history_.push_back(history_.back());
      history_.back().Step(static_cast<int64_t>(history_.size()) - 1);
    }
    return history_[static_cast<size_t>(step)];
  }
  // What is read in this order is the weights after `step`.
  void ExpectPassesSee(int64_t step, const std::vector<int>& accesses = {0, 1, 2, 3, 2, 1, 0}) {
    SCOPED_TRACE(testing::Message() << "weights after step " << step);
    swapper_->Expect(accesses);
    for (const int layer : accesses) {
      const auto weights = swapper_->Acquire(layer);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const auto expected =
          After(step).PlaneBytes(layer, 0, 0, After(0).inventory().layers()[layer].num_elems);
      ASSERT_TRUE(std::ranges::equal(*weights, expected)) << "layer " << layer;
      swapper_->Release(layer);
    }
  }
  // Applies the update of the step before, and leaves its own pending.
  void Step(int64_t step) {
    const auto norm = run_->DelayedStep(step);
    ASSERT_TRUE(norm.ok()) << norm.status();
    swapper_->ForgetUpdatedOutside();
    InMemoryOptimizer before = After(step - 1);
    EXPECT_EQ(*norm, before.Step(step));
  }
  void Finish(int64_t step) {
    ASSERT_TRUE(run_->FinishDelayed(step).ok());
    swapper_->ForgetUpdatedOutside();
    ASSERT_EQ(run_->store().committed().step, step);
    ExpectStoreHolds(run_->store(), After(step));
  }
  int64_t NumElems(int layer) const { return run_->store().tiles().layer_elems(layer); }

  const TemporaryFolder folder_;
  std::vector<InMemoryOptimizer> history_{InMemoryOptimizer(Layout::kBf16, DType::kBF16)};
  std::unique_ptr<OffloadedRun> run_;
  std::unique_ptr<Swapper> swapper_;
};

TEST_F(DelayedUpdateTest, AStepSeesTheWeightsOfTwoStepsBeforeWhateverLivesWhere) {
  int number = 0;
  for (const Tiers weights : {Tiers::kNvme, Tiers::kMixed, Tiers::kHost}) {
    for (const Tiers state : {Tiers::kHost, Tiers::kNvme, Tiers::kMixed}) {
      for (const Tiers gradients : {Tiers::kHost, Tiers::kNvme, Tiers::kMixed}) {
        const std::string name = fmt::format("{}", number++);
        SCOPED_TRACE(name);
        OffloadedRun::Options options;
        options.weights = weights;
        options.state = state;
        options.gradients = gradients;
        options.tile_elems = number % 2 == 0 ? 2048 : 6144;
        ASSERT_TRUE(std::filesystem::create_directory(folder_.Path(name)));
        ASSERT_NO_FATAL_FAILURE(Open(options, nullptr, name));
        ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(0));
        ASSERT_NO_FATAL_FAILURE(Step(1));
        for (int64_t step = 2; step <= 4; ++step) {
          ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(step - 2));
          ASSERT_NO_FATAL_FAILURE(Step(step));
          ASSERT_EQ(run_->store().committed().step, 0);
        }
        ASSERT_NO_FATAL_FAILURE(Finish(4));
        ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(4));
      }
    }
  }
}

// Each in turn, and no other: a layer whose gradient is still to come is still to be read.
TEST_F(DelayedUpdateTest, ALayerIsUpdatedWhenItsNextGradientIsHandedOver) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Step(1));
  int64_t num_updated = run_->optimizer().stats().updated_elems;
  for (int layer = 3; layer >= 0; --layer) {
    for (int other = 0; other <= layer; ++other) {
      ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(0, {other}));
    }
    ASSERT_TRUE(run_->Hand(layer, 2).ok());
    num_updated += NumElems(layer);
    while (run_->optimizer().stats().updated_elems < num_updated) std::this_thread::yield();
    ASSERT_EQ(run_->optimizer().stats().updated_elems, num_updated);
  }
  ASSERT_TRUE(run_->optimizer().FinishBackward().ok());
  ASSERT_NO_FATAL_FAILURE(Finish(1));
}

TEST_F(DelayedUpdateTest, LazyUpdatesMayComeBeforeAndInBetween) {
  Open();
  for (int64_t step = 1; step <= 6; ++step) {
    if (step == 3 || step == 6) {
      ASSERT_NO_FATAL_FAILURE(Step(step));
      ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(step - 1));
      ASSERT_NO_FATAL_FAILURE(Finish(step));
      continue;
    }
    const auto stats = run_->Backward(step);
    ASSERT_TRUE(stats.ok()) << stats.status();
    ASSERT_TRUE(run_->store().BeginWriting().ok());
    ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(step, stats->norm)).ok());
    ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(step));
    ASSERT_TRUE(run_->Commit(step).ok());
  }
}

TEST_F(DelayedUpdateTest, AnotherOrderIsRefusedAndSoAreGradientsAfterAnAbandonedStep) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Step(1));
  EXPECT_EQ(ExitCodeOf(run_->Hand(2, 2)), ExitCode::kUsage);
  for (int layer = 3; layer >= 0; --layer) ASSERT_TRUE(run_->Hand(layer, 2).ok());
  run_->optimizer().AbandonStep();
  EXPECT_EQ(ExitCodeOf(run_->Hand(3, 2)), ExitCode::kUsage);
  ASSERT_NO_FATAL_FAILURE(Finish(1));
  EXPECT_TRUE(run_->Hand(3, 2).ok());
  run_->optimizer().AbandonStep();
}

TEST_F(DelayedUpdateTest, AnAbandonedStepLeavesThePendingUpdate) {
  for (const Tiers gradients : {Tiers::kHost, Tiers::kNvme}) {
    Open({.gradients = gradients});
    const int64_t committed = run_->store().committed().step;
    ASSERT_NO_FATAL_FAILURE(Step(committed + 1));
    for (int layer = run_->num_layers() - 1; layer >= 1; --layer) {
      ASSERT_TRUE(run_->Hand(layer, committed + 2).ok());
    }
    run_->optimizer().AbandonStep();
    EXPECT_TRUE(run_->optimizer().AnyUpdateIsDue());
    ASSERT_NO_FATAL_FAILURE(Finish(committed + 1));
    EXPECT_FALSE(run_->optimizer().AnyUpdateIsDue());
  }
}

// All of the next step's are there before the first of them is read.
TEST_F(DelayedUpdateTest, GradientsInMemoryAreNotWrittenOverBeforeTheirUpdate) {
  ShutStateDisk disk;
  Open({.state = Tiers::kNvme, .gradients = Tiers::kHost}, &disk);
  disk.Shut(true);
  ASSERT_NO_FATAL_FAILURE(Step(1));
  ASSERT_TRUE(run_->Backward(2).ok());
  EXPECT_TRUE(run_->optimizer().modes().DelayedUpdateIsPending());
  disk.Shut(false);
  ASSERT_NO_FATAL_FAILURE(Finish(1));
  // Before the disk.
  swapper_ = nullptr;
  run_ = nullptr;
}

}  // namespace
}  // namespace forebay
