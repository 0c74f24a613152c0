// The run's own verification beside its steps (--scrub_every). Weights live in RAM here, so that
// nobody else reads their file.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// Damages what is read of the weights, once it is told to.
class RottingDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kRead && path.ends_with("/weights.fbs")) {
      ++num_reads;
      if (rots.exchange(false)) {
        FlipByte(std::string(path), offset_bytes + 5);
        has_rotted = true;
        std::this_thread::sleep_for(pause);
      }
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }

  std::atomic<bool> rots = false;
  std::atomic<bool> has_rotted = false;
  std::chrono::milliseconds pause{0};  // of that read
  std::atomic<int> num_reads = 0;

 private:
  static void FlipByte(const std::string& path, int64_t offset_bytes) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(::pread(fd.get(), &byte, 1, offset_bytes), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, offset_bytes), 1);
  }
};

class NotesObserver : public SilentObserver {
 public:
  void OnStep(const Json& metrics) override {
    if (on_step) on_step(metrics["step"].get<int64_t>());
  }
  void OnNote(const std::string& line) override { notes.push_back(line); }

  std::function<void(int64_t)> on_step;
  std::vector<std::string> notes;
};

class ScrubBesideStepsTest : public testing::Test {
 protected:
  // Commits steps 2, 4 and 6, each in the forward pass of the next; nothing is written in between.
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.weights_tier = TierChoice::kHost;
    options.state_tier = TierChoice::kHost;
    options.durability = Durability::kStep;
    options.commit_every = 2;
    options.steps = 8;
    options.scrub_every = 2;
    options.tile_elems = 2048;
    return options;
  }

  ToyResult Undisturbed() const {
    TrainOptions options = Options("undisturbed");
    options.scrub_every = 0;
    EXPECT_EQ(TrainToy(options), absl::OkStatus());
    return *ResultOf(options.out);
  }

  static void AwaitUpTo10S(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
};

TEST_F(ScrubBesideStepsTest, ARunVerifiesWhatItCommitsAndEndsInTheSameBits) {
  const TrainOptions options = Options("run");
  NotesObserver observer;
  observer.on_step = [](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the scrub to come through
  };
  ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  EXPECT_THAT(observer.notes,
              Contains(AllOf(HasSubstr("verified the run's state"), HasSubstr("of step"),
                             HasSubstr("all of it is what was written"))));
  EXPECT_EQ(*ResultOf(options.out), Undisturbed());
}

// On disk, where each step needs the slot that was committed before the last one.
TEST_F(ScrubBesideStepsTest, AScrubGivesWayAndGoesOnWithWhatIsCommittedNext) {
  TrainOptions options = Options("run");
  options.weights_tier = TierChoice::kNvme;
  options.state_tier = TierChoice::kNvme;
  options.commit_every = 1;
  options.steps = 200;
  options.scrub_every = 1;
  NotesObserver observer;
  ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  EXPECT_THAT(observer.notes, Contains(HasSubstr("each part of the one that was committed then")));
  TrainOptions other = options;
  other.out = folder_.Path("other");
  other.scrub_every = 0;
  ASSERT_EQ(TrainToy(other), absl::OkStatus());
  EXPECT_EQ(*ResultOf(options.out), *ResultOf(other.out));
}

TEST_F(ScrubBesideStepsTest, DamageEndsTheRunBeforeTheStepBeforeIsWrittenOver) {
  TrainOptions options = Options("run");
  options.scrub_every = 4;
  RottingDisk disk;
  NotesObserver observer;
  observer.on_step = [&](int64_t step) {
    if (step == 4) disk.rots = true;
    if (step != 5) return;
    AwaitUpTo10S([&] { return disk.has_rotted.load(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  const absl::Status status = TrainToy(options, OnDisk(&disk), observer);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("verifying the run's state found a part of step 4"),
                    HasSubstr("/weights.fbs"), HasSubstr("--repair goes back")));
  EXPECT_THAT(observer.notes, Not(Contains(HasSubstr("the run is saved"))));

  const std::unique_ptr<Engine> engine = CreateThreadsEngine({});
  const std::vector<std::string> directories = *StoreDirectoriesOf(options.out);
  MemoryBudget budget(0);
  const auto repaired = TensorStore::Repair(directories, engine.get(), "", &budget, {});
  ASSERT_TRUE(repaired.ok()) << repaired.status();
  EXPECT_TRUE(repaired->changed);
  EXPECT_EQ(repaired->step_before, 4);
  EXPECT_EQ(repaired->step, 2);
  ASSERT_EQ(TrainToyOn(options), absl::OkStatus());
  EXPECT_EQ(*ResultOf(options.out), Undisturbed());
}

// The scrub of the last step is under way when the run ends, or is stopped.
TEST_F(ScrubBesideStepsTest, DamageThatIsFoundAtTheEndIsTold) {
  for (const int64_t stop_after : {0, 4}) {
    SCOPED_TRACE(stop_after);
    TrainOptions options = Options(stop_after > 0 ? "stopped" : "ended");
    options.stop_after = stop_after;
    options.export_format = ExportFormat::kNone;
    const int64_t last = stop_after > 0 ? stop_after : options.steps;
    options.scrub_every = last;  // the first scrub is that of the last commit
    RottingDisk disk;
    disk.pause = std::chrono::milliseconds(100);
    NotesObserver observer;
    observer.on_step = [&](int64_t step) {
      if (step == last - 1) disk.rots = true;
      // The read is held up behind this, until the session is at its end.
      if (step == last) AwaitUpTo10S([&] { return disk.has_rotted.load(); });
    };
    const absl::Status status = TrainToy(options, OnDisk(&disk), observer);
    ASSERT_TRUE(disk.has_rotted);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("verifying the run's state found a part of step"));
  }
}

TEST_F(ScrubBesideStepsTest, DamageOfAStepThatAnotherHasFollowedIsNotedAndTheRunGoesOn) {
  const TrainOptions options = Options("run");
  RottingDisk disk;
  disk.pause = std::chrono::milliseconds(1000);
  NotesObserver observer;
  observer.on_step = [&](int64_t step) {
    if (step == 2) disk.rots = true;
    // Step 2 is committed in the step after it, and step 4 while the read of it is held up.
    if (step == 3) AwaitUpTo10S([&] { return disk.has_rotted.load(); });
  };
  ASSERT_EQ(TrainToy(options, OnDisk(&disk), observer), absl::OkStatus());
  EXPECT_THAT(observer.notes, Contains(AllOf(HasSubstr("a part of step 2 that is damaged"),
                                             HasSubstr("Step 4 was committed meanwhile"))));
  EXPECT_EQ(*ResultOf(options.out), Undisturbed());
}

TEST_F(ScrubBesideStepsTest, WithoutItNothingOfTheStoreIsReadBesideTheSteps) {
  TrainOptions options = Options("run");
  options.scrub_every = 0;
  options.export_format = ExportFormat::kNone;
  RottingDisk disk;
  int num_reads = 0;
  NotesObserver observer;
  observer.on_step = [&](int64_t step) {
    if (step == 1) num_reads = disk.num_reads;
  };
  ASSERT_EQ(TrainToy(options, OnDisk(&disk), observer), absl::OkStatus());
  EXPECT_EQ(disk.num_reads, num_reads);
}

}  // namespace
}  // namespace forebay
