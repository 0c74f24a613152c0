// A disk that stops answering under a training run: whoever watches hears of it while it lasts, and
// events.log keeps it.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/engine/engine_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class WarningsObserver : public SilentObserver {
 public:
  // Warnings come on the threads that wait.
  void OnWarning(const std::string& line) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
    if (on_warning) on_warning();
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::function<void()> on_warning;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class StallTest : public testing::Test {
 protected:
  // A disk of simulated time, where minutes pass at once.
  TrainEnvironment Environment(const std::shared_ptr<FaultScript>& script) const {
    return On([script](const EngineOptions& options) {
      return CreateSimulatedEngine(options, {}, script);
    });
  }
  std::string out() const { return folder_.Path("run"); }

  // The number of a call in the middle of the steps.
  int64_t CallInTheMiddle() const {
    const auto script = std::make_shared<FaultScript>(FaultPlan{});
    EXPECT_TRUE(TrainToy(task_.TightRun(folder_.Path("whole")), Environment(script)).ok());
    return script->num_calls() / 2;
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

TEST_F(StallTest, IsReportedWhileItLastsAndTheRunGoesOnWhenTheDiskDoes) {
  const auto script = std::make_shared<FaultScript>(FaultPlan{.stall_call = CallInTheMiddle()});
  WarningsObserver observer;
  observer.on_warning = [&] { script->ReleaseStalled(); };
  EXPECT_EQ(TrainToy(task_.TightRun(out()), Environment(script), observer), absl::OkStatus());
  ASSERT_EQ(observer.lines().size(), 1u);
  EXPECT_THAT(observer.lines()[0], AllOf(HasSubstr("has completed nothing for"), HasSubstr(".fbs'"),
                                         HasSubstr("dmesg")));
  EXPECT_EQ(NumEvents(out(), "warning: " + observer.lines()[0]), 1);
  EXPECT_EQ(ResultOf(out())->state, ResultOf(folder_.Path("whole"))->state);
}

TEST_F(StallTest, ThatDoesNotEndEndsTheRunAndALaterOneGoesOnFromItsCommit) {
  const auto script = std::make_shared<FaultScript>(FaultPlan{.stall_call = CallInTheMiddle()});
  WarningsObserver observer;
  const absl::Status status = TrainToy(task_.TightRun(out()), Environment(script), observer);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("completed nothing for"));
  EXPECT_GE(observer.lines().size(), 1u);
  EXPECT_GE(NumEvents(out(), "warning: aio: "), 1) << "the report";
  EXPECT_GE(NumEvents(out(), "was given up"), 1) << "the end";
  EXPECT_EQ(TrainToyOn(task_.TightRun(out())), absl::OkStatus());
  EXPECT_EQ(ResultOf(out())->state, ResultOf(folder_.Path("whole"))->state);
}

// While the model is imported the run has no log yet.
TEST_F(StallTest, OfTheImportIsInTheLogToo) {
  const auto script = std::make_shared<FaultScript>(FaultPlan{.stall_call = 3});
  WarningsObserver observer;
  observer.on_warning = [&] { script->ReleaseStalled(); };
  EXPECT_EQ(TrainToy(task_.TightRun(out()), Environment(script), observer), absl::OkStatus());
  ASSERT_EQ(observer.lines().size(), 1u);
  EXPECT_EQ(NumEvents(out(), "warning: " + observer.lines()[0]), 1);
}

}  // namespace
}  // namespace forebay
