// Errors while several steps wait for one commit: what they leave whole is saved, the user is told
// what is not, and the run goes on to the bits of one that was never disturbed.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/export/export_weights.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Contains;
using testing::HasSubstr;

class SharedCommitsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(TrainToy(task_.TightRun(folder_.Path("undisturbed"))), absl::OkStatus());
    auto expected = ResultOf(folder_.Path("undisturbed"));
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
  }

  // The steps of a run in `out` share the commit of the last one. (Of the first two, one is applied
  // when the second step is reported, and the other is due.)
  TrainOptions Options(Durability durability) const {
    TrainOptions options = task_.TightRun(folder_.Path("run"));
    options.durability = durability;
    if (durability == Durability::kStep) options.commit_every = 100;
    return options;
  }

  // With an export of one step in two on the way, for which it takes no more than the least memory.
  TrainOptions SavingOptions() const {
    TrainOptions options = Options(Durability::kStep);
    options.save_every = 2;
    options.ram_bytes += kExportBytes;
    return options;
  }

  // Whoever copies the configuration of the model meets a folder, until it is put back.
  void TakeConfigAway(const TrainOptions& options) const {
    const std::string config = JoinPath(RunPaths(options.out).files, "config.json");
    std::filesystem::rename(config, folder_.Path("config.away"));
    std::filesystem::create_directory(config);
  }
  void PutConfigBack(const TrainOptions& options) const {
    const std::string config = JoinPath(RunPaths(options.out).files, "config.json");
    std::filesystem::remove(config);
    std::filesystem::rename(folder_.Path("config.away"), config);
  }

  // Trains until the disk breaks in the third step.
  absl::Status TrainUntilTheDiskBreaks(const TrainOptions& options) {
    BreakingDisk disk;
    NotingObserver observer([&] { disk.broken = true; });
    absl::Status status = TrainToy(options, OnDisk(&disk), observer);
    notes_ = std::move(observer.notes);
    return status;
  }

  int64_t CommittedStep(const std::string& out) {
    const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
    const auto store = OpenRunStore(out, engine.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? (*store)->committed().step : -1;
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
  ToyResult expected_;
  std::vector<std::string> notes_;
};

TEST_F(SharedCommitsTest, ADiskThatBreaksLeavesTheLastCommitAndSaysSo) {
  const TrainOptions options = Options(Durability::kStep);
  const absl::Status status = TrainUntilTheDiskBreaks(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(notes_, Contains("the steps after step 0 are not saved; the run goes on from there"));
  EXPECT_EQ(CommittedStep(options.out), 0);
  ExpectResumesTo(expected_, options, status);
}

// A diverging run ends by itself, and only then needs the disk: its own error stays the one that is
// reported.
TEST_F(SharedCommitsTest, ADiskThatBreaksDoesNotHideADivergence) {
  TrainOptions options = task_.RoomyRun(folder_.Path("run"));
  options.weights_tier = TierChoice::kHost;
  options.state_tier = TierChoice::kHost;
  options.durability = Durability::kStep;
  options.commit_every = 1000;
  options.steps = 500;
  options.lr = 10;
  options.weight_decay = 1;  // so weights grow ninefold with each step
  const absl::Status status = TrainUntilTheDiskBreaks(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kNumerical) << status;
  EXPECT_THAT(notes_, Contains(HasSubstr("the steps after step 0 are not saved; the run goes on "
                                         "from there: ")));
  EXPECT_EQ(CommittedStep(options.out), 0);
}

TEST_F(SharedCommitsTest, ADiskThatBreaksMayTakeTheOneCopyWithItAndThatIsSaid) {
  const TrainOptions options = Options(Durability::kNone);
  const absl::Status status = TrainUntilTheDiskBreaks(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(notes_, Contains(HasSubstr("the steps after step 0 could not be saved, and the run's "
                                         "one copy (--durability=none) may be lost with them: ")));
  // It is: the update of the first step had begun to write over it.
  TrainOptions resumed = options;
  resumed.resume = true;
  const absl::Status refused = TrainToy(resumed);
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kCorrupt) << refused;
  EXPECT_THAT(MessageOf(refused), HasSubstr("keeps one copy (--durability=none)"));
}

// An error of another kind: the text is gone in mid-run.
TEST_F(SharedCommitsTest, WhatAnErrorElsewhereLeavesWholeIsSaved) {
  for (const Durability durability : {Durability::kStep, Durability::kNone}) {
    SCOPED_TRACE(durability == Durability::kStep ? "step" : "none");
    TrainOptions options = Options(durability);
    const std::string original = options.data;
    options.data = folder_.Path("shrinking.packed");
    std::filesystem::copy_file(original, options.data);
    NotingObserver observer([&] { std::filesystem::resize_file(options.data, 4096); });
    const absl::Status status = TrainToy(options, {}, observer);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(options.data));
    EXPECT_THAT(observer.notes, Contains("the run is saved after step 2"));
    EXPECT_EQ(CommittedStep(options.out), 2);

    std::filesystem::copy_file(original, options.data,
                               std::filesystem::copy_options::overwrite_existing);
    ExpectResumesTo(expected_, options, status);
    ASSERT_TRUE(RemoveTree(options.out).ok());
    std::filesystem::remove(options.data);
  }
}

// It runs beside the steps; what those have done is saved before its error ends the run.
TEST_F(SharedCommitsTest, AnExportThatFailsCostsNoStep) {
  TrainOptions options = SavingOptions();
  options.steps = 40;
  options.keep = 100;
  NotingObserver observer([&] { TakeConfigAway(options); });
  const absl::Status status = TrainToy(options, {}, observer);
  PutConfigBack(options);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(MessageOf(status), HasSubstr("exporting the model of step 2"));
  EXPECT_THAT(MessageOf(status), HasSubstr(JoinPath(RunPaths(options.out).files, "config.json")));
  const int64_t last_step = observer.steps.back();
  EXPECT_EQ(CommittedStep(options.out), last_step) << "all that was reported";
  EXPECT_FALSE(FileExists(JoinPath(options.out, "exports/step-2")));

  options.resume = true;
  options.stop_after = 1;
  ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  EXPECT_EQ(CommittedStep(options.out), last_step + 1);
}

// Whoever asked for it has no other way to learn that it is not there.
TEST_F(SharedCommitsTest, AnExportThatFailsIsTheErrorOfARunThatIsStoppedMeanwhile) {
  TrainOptions options = SavingOptions();
  options.stop_after = 2;
  NotingObserver observer([&] { TakeConfigAway(options); });
  const absl::Status status = TrainToy(options, {}, observer);
  PutConfigBack(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("exporting the model of step 2"));
  EXPECT_THAT(observer.notes, Contains("the run is saved after step 2"));
  EXPECT_EQ(CommittedStep(options.out), 2);
  options.stop_after = 0;
  ExpectResumesTo(expected_, options, status);
  EXPECT_TRUE(FileExists(JoinPath(options.out, "exports/step-2"))) << "it is made up for";
}

// A kill may come when a step is committed and its export is not done.
TEST_F(SharedCommitsTest, TheExportOfTheCommittedStepIsMadeUpFor) {
  TrainOptions options = SavingOptions();
  options.stop_after = 2;
  ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  const std::string exported = JoinPath(options.out, "exports/step-2");
  ASSERT_TRUE(FileExists(exported));
  const auto expected = ModelDigest(exported);
  std::filesystem::rename(exported, exported + ".tmp");
  std::filesystem::create_directory(JoinPath(options.out, "exports/step-1.tmp"));
  options.stop_after = 0;
  options.resume = true;
  ASSERT_EQ(TrainToy(options), absl::OkStatus());
  ASSERT_TRUE(FileExists(exported));
  EXPECT_EQ(*ModelDigest(exported), *expected);
  EXPECT_FALSE(FileExists(exported + ".tmp"));
  EXPECT_FALSE(FileExists(JoinPath(options.out, "exports/step-1.tmp")));
}

}  // namespace
}  // namespace forebay
