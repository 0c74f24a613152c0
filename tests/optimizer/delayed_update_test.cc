// Updates that are applied beside the next step, which sees the weights before them: the result is
// that of AdamW in memory, and what a step sees is that of two steps before, whatever lives where,
// however often the process ends in between.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// Reads of the state wait while it is shut.
class ShutStateDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kRead && path.ends_with(kStateName)) {
      std::unique_lock lock(mutex_);
      open_.wait(lock, [this] { return !is_shut_; });
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  void Shut(bool is_shut) {
    const std::lock_guard lock(mutex_);
    is_shut_ = is_shut;
    open_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable open_;
  bool is_shut_ = false;  // mutex_
};

class DelayedUpdateTest : public testing::Test {
 protected:
  // With what a new process would have: nothing but the store in folder `name`, or a new one.
  void Open(OffloadedRun::Options options = {}, DiskCalls* disk = nullptr,
            const std::string& name = "") {
    swapper_ = nullptr;
    run_ = nullptr;
    options.delayed = true;
    options.weights = Tiers::kNvme;
    options.num_threads = options.num_io_threads = 2;
    auto run = OffloadedRun::Start(options, folder_.Path(name), disk);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
    auto swapper = run_->MakeSwapper();
    ASSERT_TRUE(swapper.ok()) << swapper.status();
    swapper_ = *std::move(swapper);
  }
  InMemoryOptimizer& After(int64_t step) {
    while (static_cast<int64_t>(history_.size()) <= step) {
      history_.push_back(history_.back());
      history_.back().Step(static_cast<int64_t>(history_.size()) - 1);
    }
    return history_[static_cast<size_t>(step)];
  }
  // Both passes see the weights after `step`.
  void ExpectPassesSee(Generation generation, int64_t step) {
    SCOPED_TRACE(testing::Message() << "weights after step " << step);
    swapper_->SwitchTo(generation);
    const std::vector<int> accesses = {0, 1, 2, 3, 2, 1, 0};
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
  // Leaves its update pending.
  void Step(int64_t step) {
    const auto norm = run_->DelayedStep(step);
    ASSERT_TRUE(norm.ok()) << norm.status();
    InMemoryOptimizer before = After(step - 1);
    EXPECT_EQ(*norm, before.Step(step));
  }
  void Finish(int64_t step) {
    ASSERT_TRUE(run_->FinishDelayed(step).ok());
    ASSERT_EQ(run_->store().committed().step, step);
    ExpectStoreHolds(run_->store(), After(step));
  }

  const TemporaryFolder folder_;
  std::vector<InMemoryOptimizer> history_{InMemoryOptimizer(Layout::kBf16, DType::kBF16)};
  std::unique_ptr<OffloadedRun> run_;
  std::unique_ptr<Swapper> swapper_;
};

TEST_F(DelayedUpdateTest, AStepSeesTheWeightsOfTwoStepsBeforeWhateverLivesWhere) {
  int number = 0;
  for (const Tiers state : {Tiers::kHost, Tiers::kNvme, Tiers::kMixed}) {
    for (const Tiers gradients : {Tiers::kHost, Tiers::kNvme, Tiers::kMixed}) {
      for (const int64_t tile_elems : {2048, 6144}) {
        for (const GradientArea area : {GradientArea::kSpilled, GradientArea::kAll}) {
          const std::string name = fmt::format("{}", number++);
          SCOPED_TRACE(name);
          OffloadedRun::Options options;
          options.state = state;
          options.gradients = gradients;
          options.tile_elems = tile_elems;
          options.area = area;
          ASSERT_TRUE(std::filesystem::create_directory(folder_.Path(name)));
          ASSERT_NO_FATAL_FAILURE(Open(options, nullptr, name));
          ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kNewest, 0));
          ASSERT_NO_FATAL_FAILURE(Step(1));
          for (int64_t step = 2; step <= 4; ++step) {
            ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kCommitted, step - 2));
            ASSERT_NO_FATAL_FAILURE(Step(step));
            ASSERT_EQ(run_->store().committed().step, step - 1);
          }
          ASSERT_NO_FATAL_FAILURE(Finish(4));
          ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kNewest, 4));
        }
      }
    }
  }
}

TEST_F(DelayedUpdateTest, WhatIsCommittedBeforeIsSeenWhereNothingIsPending) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Step(1));
  ASSERT_NO_FATAL_FAILURE(Finish(1));
  for (int64_t step = 2; step <= 5; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    // An evaluation in between; and every other step another process.
    ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kNewest, step - 1));
    if (step % 2 == 0) {
      ASSERT_NO_FATAL_FAILURE(Open());
    }
    ASSERT_TRUE(run_->store().FindPrevious().ok());
    ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kPrevious, step - 2));
    ASSERT_NO_FATAL_FAILURE(Step(step));
    ASSERT_NO_FATAL_FAILURE(Finish(step));
  }
}

TEST_F(DelayedUpdateTest, LazyUpdatesMayComeBefore) {
  Open();
  for (int64_t step = 1; step <= 3; ++step) {
    const auto stats = run_->Backward(step);
    ASSERT_TRUE(stats.ok()) << stats.status();
    ASSERT_TRUE(run_->store().BeginWriting().ok());
    ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(step, stats->norm)).ok());
    ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kNewest, step));
    ASSERT_TRUE(run_->Commit(step).ok());
  }
  ASSERT_NO_FATAL_FAILURE(Step(4));
  ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kCommitted, 3));
  ASSERT_NO_FATAL_FAILURE(Step(5));
  ASSERT_NO_FATAL_FAILURE(Finish(5));
}

TEST_F(DelayedUpdateTest, AnAbandonedStepLeavesThePendingUpdate) {
  for (const Tiers gradients : {Tiers::kHost, Tiers::kNvme}) {
    Open({.gradients = gradients});
    const int64_t committed = run_->store().committed().step;
    ASSERT_NO_FATAL_FAILURE(Step(committed + 1));
    for (int layer = run_->num_layers() - 1; layer >= 1; --layer) {
      const std::vector<float> gradient =
          GradientOf(run_->store().inventory(), layer, committed + 2);
      ASSERT_TRUE(run_->optimizer().Hand(Fp32Gradient(layer, gradient), run_->pool()).ok());
    }
    run_->optimizer().AbandonStep();
    EXPECT_TRUE(run_->optimizer().AnyUpdateIsDue());
    ASSERT_NO_FATAL_FAILURE(Finish(committed + 1));
    EXPECT_FALSE(run_->optimizer().AnyUpdateIsDue());
  }
}

TEST_F(DelayedUpdateTest, GradientsMayComeBetweenTheEndOfAnUpdateAndItsCommit) {
  for (const Tiers gradients : {Tiers::kHost, Tiers::kNvme}) {
    Open({.gradients = gradients, .area = GradientArea::kAll});
    const int64_t first = run_->store().committed().step + 1;
    ASSERT_NO_FATAL_FAILURE(Step(first));
    ASSERT_TRUE(run_->Hand(3, first + 1).ok());
    ASSERT_TRUE(run_->optimizer().modes().FinishDelayedUpdate().ok());
    ASSERT_TRUE(run_->Hand(2, first + 1).ok());
    ASSERT_TRUE(run_->store().Commit({first, Json::object()}).ok());
    for (const int layer : {1, 0}) ASSERT_TRUE(run_->Hand(layer, first + 1).ok());
    const auto stats = run_->optimizer().FinishBackward();
    ASSERT_TRUE(stats.ok()) << stats.status();
    ASSERT_TRUE(run_->optimizer().PublishIntent(first + 1, Json::object()).ok());
    ASSERT_TRUE(run_->store().BeginWriting().ok());
    ASSERT_TRUE(
        run_->optimizer().modes().BeginDelayedUpdate(ScalarsOfStep(first + 1, stats->norm)).ok());
    ASSERT_NO_FATAL_FAILURE(Finish(first + 1));
  }
}

// The gradient in RAM is that of the update until it has used it.
TEST_F(DelayedUpdateTest, AGradientInMemoryIsNotWrittenOverBeforeItsUpdate) {
  ShutStateDisk disk;
  Open({.state = Tiers::kNvme, .gradients = Tiers::kHost}, &disk);
  disk.Shut(true);
  ASSERT_NO_FATAL_FAILURE(Step(1));
  std::atomic<bool> is_handed = false;
  absl::Status handed;
  std::thread hands([&] {
    handed = run_->optimizer().Hand(Fp32Gradient(3, GradientOf(run_->store().inventory(), 3, 2)),
                                    run_->pool());
    is_handed = true;
  });
  // As long as that takes: what is wrong is not found on a slow machine, but nothing else is.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_handed);
  disk.Shut(false);
  hands.join();
  EXPECT_TRUE(handed.ok()) << handed;
  run_->optimizer().AbandonStep();
  ASSERT_NO_FATAL_FAILURE(Finish(1));
  // Before the disk.
  swapper_ = nullptr;
  run_ = nullptr;
}

// A crash at any moment between two commits: the gradients of the pending update are whole, though
// others were handed over meanwhile, or the weights that they came from are.
TEST_F(DelayedUpdateTest, ACrashLeavesGradientsOrTheWeightsBeforeThem) {
  for (const Tiers gradients : {Tiers::kHost, Tiers::kNvme}) {
    OffloadedRun::Options options;
    options.gradients = gradients;
    options.area = GradientArea::kAll;
    ASSERT_NO_FATAL_FAILURE(Open(options));
    const int64_t committed = run_->store().committed().step;
    ASSERT_NO_FATAL_FAILURE(Step(committed + 1));
    ASSERT_NO_FATAL_FAILURE(Step(committed + 2));
    ASSERT_TRUE(run_->Backward(committed + 3).ok());
    // Ends here: the update of `committed` + 2 is not committed, the gradients of + 3 have no
    // intent.
    ASSERT_NO_FATAL_FAILURE(Open(options));
    ASSERT_EQ(run_->store().committed().step, committed + 1);
    const RecoveredGradients recovered =
        run_->optimizer().RecoverGradients([](double) { return absl::OkStatus(); });
    ASSERT_TRUE(recovered.damage.ok()) << recovered.damage;
    ASSERT_TRUE(recovered.intent.has_value());
    ASSERT_EQ(recovered.intent->step, committed + 2);
    InMemoryOptimizer before = After(committed + 1);
    const double norm = before.Step(committed + 2);
    ASSERT_TRUE(run_->store().BeginWriting().ok());
    ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(committed + 2, norm)).ok());
    ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
    ASSERT_TRUE(run_->Commit(committed + 2).ok());
    ExpectStoreHolds(run_->store(), After(committed + 2));
    // What follows it sees the weights without it.
    ASSERT_TRUE(run_->store().FindPrevious().ok());
    ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kPrevious, committed + 1));
    ASSERT_NO_FATAL_FAILURE(Step(committed + 3));
    ASSERT_NO_FATAL_FAILURE(Finish(committed + 3));
    // A commit, and no intent yet.
    ASSERT_NO_FATAL_FAILURE(Open(options));
    EXPECT_FALSE(run_->optimizer()
                     .RecoverGradients([](double) { return absl::OkStatus(); })
                     .intent.has_value());
    ASSERT_TRUE(run_->store().FindPrevious().ok());
    ASSERT_NO_FATAL_FAILURE(ExpectPassesSee(Generation::kPrevious, committed + 2));
  }
}

TEST_F(DelayedUpdateTest, WhatIsWrittenOverAlreadyIsNotTakenForTheWeightsBefore) {
  OffloadedRun::Options options;
  options.area = GradientArea::kAll;
  ASSERT_NO_FATAL_FAILURE(Open(options));
  ASSERT_NO_FATAL_FAILURE(Step(1));
  ASSERT_NO_FATAL_FAILURE(Step(2));
  // The update of step 2 is written, and its gradients are lost with their intent.
  ASSERT_TRUE(run_->optimizer().modes().FinishDelayedUpdate().ok());
  ASSERT_NO_FATAL_FAILURE(Open(options));
  ASSERT_TRUE(run_->store().FindPrevious().ok());  // its checksums are those of step 0
  swapper_->SwitchTo(Generation::kPrevious);
  swapper_->Expect(std::vector<int>{0});
  const auto weights = swapper_->Acquire(0);
  ASSERT_EQ(ExitCodeOf(weights.status()), ExitCode::kCorrupt) << weights.status();
  EXPECT_THAT(MessageOf(weights.status()),
              HasSubstr("The step after step 1 needs the weights of the commit before"));
}

}  // namespace
}  // namespace forebay
