// An export beside the steps whose reads of the store are held up, or fail. Weights live in RAM
// here, so that nobody else reads their file.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/start/resolve_options.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class ExportDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kRead && path.ends_with("/weights.fbs")) {
      while (holds_up && !TakePass()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++num_reads;
      if (fails) {
        has_failed = true;
        return -EIO;
      }
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }

  std::atomic<bool> holds_up = false;
  std::atomic<int> num_passes = 0;  // reads that get through all the same
  std::atomic<int> num_reads = 0;
  std::atomic<bool> fails = false;
  std::atomic<bool> has_failed = false;

 private:
  bool TakePass() {
    int passes = num_passes;
    return passes > 0 && num_passes.compare_exchange_strong(passes, passes - 1);
  }
};

class StepsObserver : public SilentObserver {
 public:
  void OnStep(const Json& metrics) override {
    lines.push_back(metrics);
    if (on_step) on_step(metrics["step"].get<int64_t>());
  }
  void OnPhase(const std::string& phase, double) override {
    if (on_phase) on_phase(phase);
  }
  void OnNote(const std::string& line) override { notes.push_back(line); }

  std::function<void(int64_t)> on_step;
  std::function<void(const std::string&)> on_phase;
  std::vector<Json> lines;
  std::vector<std::string> notes;
};

class ExportBesideStepsTest : public testing::Test {
 protected:
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.weights_tier = TierChoice::kHost;
    options.durability = Durability::kStep;
    options.steps = 6;
    options.save_every = 2;
    options.io_threads = 4;  // one may be held up
    return options;
  }

  // Trains until `is_time`, of the steps that are done and the reads that the disk has done since,
  // says that somebody asks for a stop. From `slow_step` on the disk reads once in a step, and once
  // for each time that whoever waits for an export says so: it ends only where somebody waits.
  void TrainUntil(const TrainOptions& options, int64_t slow_step,
                  const std::function<bool(int64_t, int)>& is_time) {
    ExportDisk disk;
    StepsObserver observer;
    int64_t num_steps = 0;
    observer.on_step = [&](int64_t step) {
      num_steps = step;
      disk.holds_up = step >= slow_step;
      disk.num_passes = 1;
      disk.num_reads = 0;
    };
    observer.on_phase = [&](const std::string& phase) {
      if (phase == "exporting") ++disk.num_passes;
    };
    bool is_stopped = false;
    const auto stop = [&] { return is_stopped = is_stopped || is_time(num_steps, disk.num_reads); };
    const absl::Status status = Train(ResolvedFrom(options, "test"), stop, observer, OnDisk(&disk));
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("All of it is saved"));
    notes_ = observer.notes;
  }
  void ExpectResumesToTheSame(const TrainOptions& options) {
    const TrainOptions undisturbed = Options("undisturbed");
    ASSERT_EQ(TrainToy(undisturbed), absl::OkStatus());
    ASSERT_EQ(TrainToyOn(options), absl::OkStatus());
    EXPECT_EQ(*ResultOf(options.out), *ResultOf(undisturbed.out));
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
  std::vector<std::string> notes_;
};

TEST_F(ExportBesideStepsTest, TheWaitForItsEndIsNoTimeOfComputation) {
  TrainOptions options = Options("run");
  options.commit_every = 1;
  ExportDisk disk;
  StepsObserver observer;
  observer.on_step = [&](int64_t step) {
    if (step == 2) disk.holds_up = true;
  };
  // Whoever waits says so, 50 ms apart: a second in all.
  int num_waits = 0;
  observer.on_phase = [&](const std::string& phase) {
    if (phase == "exporting" && ++num_waits == 20) disk.holds_up = false;
  };
  ASSERT_EQ(TrainToy(options, OnDisk(&disk), observer), absl::OkStatus());
  ASSERT_EQ(observer.lines.size(), 6u);
  // Step 3 writes to the other slot, step 4 to that which is exported.
  const Json& line = observer.lines[3];
  EXPECT_GE(line["io_wait_s"].get<double>(), 0.9);
  EXPECT_GE(line["waits"]["export"].get<double>(), 0.9);
  double sum = 0;
  for (const auto& [cause, seconds] : line["waits"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, line["io_wait_s"].get<double>(), 1e-6);
  EXPECT_NEAR(line["compute_s"].get<double>(),
              line["step_s"].get<double>() - line["io_wait_s"].get<double>(), 1e-6);
  EXPECT_LT(observer.lines[4]["io_wait_s"].get<double>(), line["io_wait_s"].get<double>());
}

// The disk that fails is the run's own: nothing more is asked of it.
TEST_F(ExportBesideStepsTest, AStoreThatItCannotReadIsLeftAlone) {
  TrainOptions options = Options("run");
  options.commit_every = 100;
  ExportDisk disk;
  StepsObserver observer;
  observer.on_step = [&](int64_t step) {
    if (step == 2) disk.fails = true;
    if (step != 3) return;
    // By the end of this step the export has ended, too: it has taken away what it had begun.
    const std::string begun = JoinPath(RunPaths(options.out).exports, "step-2.tmp");
    for (int i = 0; i < 10'000 && (!disk.has_failed || FileExists(begun)); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  const absl::Status status = TrainToy(options, OnDisk(&disk), observer);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("exporting the model of step 2"));
  EXPECT_THAT(observer.notes,
              Contains("the steps after step 2 are not saved; the run goes on from there"));
  EXPECT_THAT(observer.notes, Not(Contains(HasSubstr("the run is saved"))));

  const TrainOptions undisturbed = Options("undisturbed");
  ASSERT_EQ(TrainToy(undisturbed), absl::OkStatus());
  ASSERT_EQ(TrainToyOn(options), absl::OkStatus());
  EXPECT_EQ(*ResultOf(options.out), *ResultOf(undisturbed.out));
}

TEST_F(ExportBesideStepsTest, AStopWhileAStepWaitsForItGivesItUp) {
  TrainOptions options = Options("run");
  options.commit_every = 1;
  // Nothing but the export reads, and that only while step 4 waits for it.
  TrainUntil(options, /*slow_step=*/2, [](int64_t num_steps, int num_reads) {
    return num_steps > 3 || (num_steps == 3 && num_reads >= 4);
  });
  EXPECT_THAT(notes_, Contains("the model of step 2 is not exported, as the run is stopped"));
  EXPECT_THAT(*ListFolder(RunPaths(options.out).exports), IsEmpty());
  ExpectResumesToTheSame(options);
  // Step 2 is not the committed one any more.
  EXPECT_THAT(*ListFolder(RunPaths(options.out).exports), Not(Contains("step-2")));
}

TEST_F(ExportBesideStepsTest, AStopThatFindsItUnderWayGivesItUpAndAResumeMakesThatOfTheCommit) {
  TrainOptions options = Options("run");
  options.keep = 3;
  TrainUntil(options, /*slow_step=*/2, [](int64_t num_steps, int) { return num_steps >= 2; });
  EXPECT_THAT(notes_, Contains("the model of step 2 is not exported, as the run is stopped"));
  EXPECT_THAT(*ListFolder(RunPaths(options.out).exports), IsEmpty());
  ExpectResumesToTheSame(options);
  EXPECT_THAT(*ListFolder(RunPaths(options.out).exports), UnorderedElementsAre("step-2", "step-4"));
}

TEST_F(ExportBesideStepsTest, AStopDuringThatOfTheResultLeavesItToAResume) {
  TrainOptions options = Options("run");
  TrainUntil(options, /*slow_step=*/options.steps + 1,
             [](int64_t num_steps, int num_reads) { return num_steps == 6 && num_reads >= 4; });
  EXPECT_FALSE(FileExists(RunPaths(options.out).model));
  ExpectResumesToTheSame(options);
}

}  // namespace
}  // namespace forebay
