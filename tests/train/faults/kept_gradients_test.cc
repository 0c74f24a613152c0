// --durability=replay: a run that ends between two commits, its gradients whole, goes on with the
// update of that step and computes nothing of it again; and to the same bits whatever happened to
// them.
#include <fcntl.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/start/resolve_options.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kApplied[] = "step 2: its gradients were whole, and its update is applied";

struct Setting {
  const char* name;
  TrainOptions (ToyTask::*options)(const std::string& out) const;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

class PhaseObserver : public SilentObserver {
 public:
  explicit PhaseObserver(std::function<void(const std::string&, double)> on_phase)
      : on_phase_(std::move(on_phase)) {}
  void OnPhase(const std::string& phase, double fraction) override { on_phase_(phase, fraction); }

 private:
  const std::function<void(const std::string&, double)> on_phase_;
};

// What the store takes, before the run and after it.
class SpaceObserver : public SilentObserver {
 public:
  void OnPlan(const std::string&, const Json& plan) override {
    planned_bytes = 0;
    for (const Json& stripe : plan["stripes"]) planned_bytes += stripe["nvme_bytes"].get<int64_t>();
  }
  void OnDone(const Json& summary) override { done_bytes = summary["store_bytes"].get<int64_t>(); }

  int64_t planned_bytes = 0;
  int64_t done_bytes = 0;
};

std::string BaseName(const std::string& path) {
  return std::filesystem::path(path).filename();
}

class ReplayTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    ASSERT_EQ(TrainToy((task_.*GetParam().options)(folder_.Path("undisturbed"))), absl::OkStatus());
    auto expected = ResultOf(folder_.Path("undisturbed"));
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
    options_ = (task_.*GetParam().options)(folder_.Path("run"));
    options_.durability = Durability::kReplay;
  }

  // As a power cut or a kill after the second step was reported: its update is due, its gradients
  // are kept, and only the first step is committed.
  void EndInTheThirdStep() {
    BreakingDisk disk;
    NotingObserver observer([&] { disk.broken = true; });
    const absl::Status status = TrainToy(options_, OnDisk(&disk), observer);
    ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    ASSERT_THAT(observer.notes,
                Contains("the steps after step 1 are not saved; the run goes on from there"));
  }

  void Resume(const TrainEnvironment& environment = {}) {
    options_.resume = true;
    NotingObserver observer([] {});
    const absl::Status status = TrainToy(options_, environment, observer);
    ASSERT_TRUE(status.ok()) << status;
    notes_ = std::move(observer.notes);
    steps_ = std::move(observer.steps);
    ExpectResumesTo(expected_, options_, status);
  }

  void ExpectLastStepIsRedone() {
    options_.stop_after = kToySteps - 1;
    ASSERT_EQ(ExitCodeOf(TrainToy(options_)), ExitCode::kInterrupted);
    options_.stop_after = 0;
    options_.resume = true;
    // The commit of the last step fails, when its intent was published.
    BreakingDisk disk;
    disk.break_at = "/seals.fbs";
    NotingObserver observer([] {});
    const absl::Status status = TrainToy(options_, OnDisk(&disk), observer);
    ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    ASSERT_NO_FATAL_FAILURE(Resume());
    EXPECT_THAT(notes_, Contains("step 3: its gradients were whole, and its update is applied"));
    EXPECT_TRUE(steps_.empty());
  }

  std::string StoreFile(const char* name) const {
    const std::string store =
        options_.nvme.empty() ? JoinPath(options_.out, "swap") : options_.nvme.front();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
      const bool is_second_copy = entry.path().parent_path().filename() == "copy";
      if (entry.path().filename() == name && !is_second_copy) return entry.path();
    }
    return "";
  }
  void FlipByte(const char* name, int64_t offset_bytes) {
    const std::string path = StoreFile(name);
    const auto fd = OpenFile(path, O_RDWR);
    ASSERT_TRUE(fd.ok()) << fd.status();
    std::array<std::byte, 1> byte;
    ASSERT_TRUE(PreadAll(fd->get(), byte, offset_bytes, path).ok());
    byte[0] ^= std::byte{16};
    ASSERT_TRUE(PwriteAll(fd->get(), byte, offset_bytes, path).ok());
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
  ToyResult expected_;
  TrainOptions options_;
  std::vector<std::string> notes_;
  std::vector<int64_t> steps_;
};

TEST_P(ReplayTest, AnUndisturbedRunHasTheSameBits) {
  ASSERT_EQ(TrainToy(options_), absl::OkStatus());
  ExpectResumesTo(expected_, options_, absl::OkStatus());
}

TEST_P(ReplayTest, TheUpdateOfAStepWhoseGradientsWereWholeIsApplied) {
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_, Contains(kApplied));
  EXPECT_THAT(steps_, ElementsAre(3)) << "and nothing of it is computed again";
}

// They are many, and it takes long to read them.
TEST_P(ReplayTest, AStopIsHeardWhileTheyAreReadAndLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  options_.resume = true;
  bool stops = false;
  PhaseObserver observer([&](const std::string& phase, double fraction) {
    stops |= phase == "looking for kept gradients" && fraction > 0;
  });
  const absl::Status status =
      Train(ResolvedFrom(options_, "test"), [&] { return stops; }, observer, {});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("after step 1 of 3. All of it is saved"));
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_, Contains(kApplied));
  EXPECT_THAT(steps_, ElementsAre(3)) << "and nothing of it is computed again";
}

TEST_P(ReplayTest, ThePlanAndTheSummaryAgreeOnTheSpaceOfTheStore) {
  SpaceObserver observer;
  ASSERT_EQ(TrainToy(options_, {}, observer), absl::OkStatus());
  EXPECT_EQ(observer.done_bytes, observer.planned_bytes);
  EXPECT_GT(observer.done_bytes, 0);
  options_.durability = Durability::kStep;
  options_.out = folder_.Path("step");
  for (std::string& nvme : options_.nvme) nvme = JoinPath(options_.out, BaseName(nvme));
  SpaceObserver of_step;
  ASSERT_EQ(TrainToy(options_, {}, of_step), absl::OkStatus());
  EXPECT_EQ(of_step.done_bytes, of_step.planned_bytes);
  EXPECT_LT(of_step.done_bytes, observer.done_bytes);
}

TEST_P(ReplayTest, WithoutItTheStepIsComputedAgain) {
  options_.durability = Durability::kStep;
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(steps_, ElementsAre(2, 3));
}

TEST_P(ReplayTest, DamagedGradientsAreNotUsedAndThatIsSaid) {
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  FlipByte(kScratchName, 100);
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_,
              Contains(HasSubstr("step 2 is computed again, as its gradients cannot be used: '" +
                                 StoreFile(kScratchName))));
  EXPECT_THAT(steps_, ElementsAre(2, 3));
}

TEST_P(ReplayTest, GradientsThatCannotBeReadCostAStep) {
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  options_.io_threads = 1;
  BreakingDisk disk;
  disk.fail_read_of = kScratchName;
  ASSERT_NO_FATAL_FAILURE(Resume(OnDisk(&disk)));
  EXPECT_THAT(notes_, Contains(AllOf(HasSubstr("step 2 is computed again"),
                                     HasSubstr(StoreFile(kScratchName)))));
  EXPECT_THAT(steps_, ElementsAre(2, 3));
}

TEST_P(ReplayTest, ADamagedIntentCostsAStep) {
  for (const int64_t offset_bytes : {0, 9, 20, 60, 90, 4090, 4100}) {
    SCOPED_TRACE(offset_bytes);
    options_.resume = false;
    ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
    FlipByte(kIntentName, offset_bytes);
    ASSERT_NO_FATAL_FAILURE(Resume());
    EXPECT_THAT(notes_, Not(Contains(kApplied)));
    EXPECT_THAT(steps_, ElementsAre(2, 3));
    ASSERT_TRUE(RemoveTree(options_.out).ok());
  }
}

// Its intent is left behind, and is for a step that is committed since.
TEST_P(ReplayTest, MayBeSwitchedOffAndOn) {
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  options_.resume = true;
  options_.durability = Durability::kStep;
  options_.stop_after = 1;
  ASSERT_EQ(ExitCodeOf(TrainToy(options_)), ExitCode::kInterrupted);
  options_.stop_after = 0;
  options_.durability = Durability::kReplay;
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_, Not(Contains(HasSubstr("gradients"))));
  EXPECT_THAT(steps_, ElementsAre(3));
}

TEST_P(ReplayTest, TheLastStepNeedsNothingMore) {
  ExpectLastStepIsRedone();
}

// With updates that are delayed (--delay_update_from): steps 2 and 3 do not see the update before.
class DelayedReplayTest : public ReplayTest {
 protected:
  TrainOptions OptionsOf(const std::string& name) const {
    TrainOptions options = (task_.*GetParam().options)(folder_.Path(name));
    task_.Delay(options);
    return options;
  }
  void SetUp() override {
    ASSERT_EQ(TrainToy(OptionsOf("undisturbed")), absl::OkStatus());
    auto expected = ResultOf(folder_.Path("undisturbed"));
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
    options_ = OptionsOf("run");
  }
  // Commits step 1; then the update of step 2 ends at the first write to `file`, its gradients
  // kept.
  void EndInTheUpdateAt(const char* file) {
    options_.stop_after = 1;
    ASSERT_EQ(ExitCodeOf(TrainToy(options_)), ExitCode::kInterrupted);
    options_.stop_after = 0;
    options_.resume = true;
    options_.io_threads = 1;
    BreakingDisk disk;
    disk.break_at = file;
    const absl::Status status = TrainToy(options_, OnDisk(&disk));
    ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  }
};

TEST_P(DelayedReplayTest, TheUpdateOfAStepWhoseGradientsWereWholeIsApplied) {
  ASSERT_NO_FATAL_FAILURE(EndInTheThirdStep());
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_, Contains(kApplied));
  EXPECT_THAT(steps_, ElementsAre(3)) << "and nothing of it is computed again";
}

// They may be all that is left to go on from.
TEST_P(DelayedReplayTest, GradientsThatCannotBeReadAreNotGivenUp) {
  ASSERT_NO_FATAL_FAILURE(EndInTheUpdateAt("/seals.fbs"));
  BreakingDisk disk;
  disk.fail_read_of = kScratchName;
  const absl::Status status = TrainToy(options_, OnDisk(&disk));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_, Contains(kApplied));
  EXPECT_THAT(steps_, ElementsAre(3));
}

TEST_P(DelayedReplayTest, GradientsWithoutAnIntentAreMadeAgainOfTheWeightsBefore) {
  ASSERT_NO_FATAL_FAILURE(EndInTheUpdateAt("/state.fbs"));
  FlipByte(kIntentName, 100);
  ASSERT_NO_FATAL_FAILURE(Resume());
  EXPECT_THAT(notes_, Not(Contains(kApplied)));
  EXPECT_THAT(steps_, ElementsAre(2, 3));
}

TEST_P(DelayedReplayTest, NothingIsMadeUpWhereTheWeightsBeforeAreWrittenOverToo) {
  ASSERT_NO_FATAL_FAILURE(EndInTheUpdateAt("/seals.fbs"));
  FlipByte(kIntentName, 100);
  const absl::Status status = TrainToy(options_);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  EXPECT_THAT(MessageOf(status),
              HasSubstr("The step after step 1 needs the weights of the commit before"));
  // What is committed is whole.
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  const auto store = OpenRunStore(options_.out, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->committed().step, 1);
  MemoryBudget budget(0);
  std::vector<TileDamage> damaged;
  EXPECT_EQ((*store)->Scrub(&budget, {}, damaged), absl::OkStatus());
  EXPECT_TRUE(damaged.empty());
}

TEST_P(DelayedReplayTest, TheLastStepNeedsNothingMore) {
  ExpectLastStepIsRedone();
}

const auto kSettings =
    testing::Values(Setting{"Spilled", &ToyTask::TightRun}, Setting{"InRam", &ToyTask::RoomyRun},
                    Setting{"Striped", &ToyTask::StripedRun});
const auto kNameOf = [](const auto& c) { return std::string(c.param.name); };
INSTANTIATE_TEST_SUITE_P(Runs, ReplayTest, kSettings, kNameOf);
INSTANTIATE_TEST_SUITE_P(Runs, DelayedReplayTest, kSettings, kNameOf);

}  // namespace
}  // namespace forebay
