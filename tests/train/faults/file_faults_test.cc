// Every system call that a training run makes to its small files fails: records, logs, locks, the
// making of the store's files, the export. The run ends with an error, or does without the call,
// and can go on, or be started again, to the bits of a run that was never disturbed.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/train/faults/failing_calls.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct FileSetting {
  const char* name;
  bool resumed = false;  // the process that fails goes on with a run that another one began
  bool striped = false;  // two folders
};
void PrintTo(const FileSetting& setting, std::ostream* out) {
  *out << setting.name;
}
constexpr FileSetting kFileSettings[] = {{"FromTheStart"},
                                         {"Resumed", true},
                                         {"TwoFolders", false, true},
                                         {"TwoFoldersResumed", true, true}};

class FileFaultsTest : public testing::TestWithParam<FileSetting> {
 protected:
  bool resumed() const { return GetParam().resumed; }
  TrainOptions Options() const {
    return GetParam().striped ? task_.StripedRun(out_) : task_.TightRun(out_);
  }

  void SetUp() override {
    ASSERT_TRUE(TrainToy(Options()).ok());
    auto expected = ResultOf(out_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
    const TrainOptions options = Prepare();
    const FailingCalls watch(out_);
    ASSERT_TRUE(TrainToy(options).ok());
    calls_ = watch.calls();
  }

  // The folder for the process that the cases are about, and its options.
  TrainOptions Prepare() const {
    EXPECT_TRUE(RemoveTree(out_).ok());
    TrainOptions options = Options();
    if (!resumed()) return options;
    options.stop_after = 1;
    EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
    options.stop_after = 0;
    options.resume = true;
    return options;
  }

  // One in `stride` of the calls.
  void RunCases(size_t stride, bool in_both_ways) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(FaultSeed()));
    CaseLimit limit(std::chrono::seconds(120));
    const Handles before = CountHandles();
    const std::string only = OnlyCase();
    int num_cases = 0;
    for (size_t i = 0; i < calls_.size(); ++i) {
      for (const int error_number : {EIO, ENOSPC}) {
        const std::string name = NameOf(calls_[i], error_number);
        const uint64_t turn = FaultSeed() + i;
        const bool is_drawn = turn % stride == 0 &&
                              (in_both_ways || turn / stride % 2 == (error_number == EIO ? 0 : 1));
        if (only.empty() ? !is_drawn : only != name) continue;
        SCOPED_TRACE("repeat with: " + RepeatCommand(name));
        limit.Begin(RepeatCommand(name));
        ASSERT_NO_FATAL_FAILURE(RunCase(calls_[i], error_number));
        ExpectNoMoreThan(before);
        ASSERT_FALSE(HasFailure()) << "the other cases were left out";
        ++num_cases;
      }
    }
    EXPECT_GT(num_cases, 0);
    std::printf("%d cases over %zu calls\n", num_cases, calls_.size());
  }

  static std::string NameOf(const FileCall& call, int error_number) {
    return fmt::format("{} {} {} {}", call.function, call.file, call.nth, ErrnoText(error_number));
  }

  void RunCase(const FileCall& call, int error_number) {
    const TrainOptions options = Prepare();
    absl::Status status;
    {
      const FailingCalls watch(out_, call, error_number);
      status = TrainToy(options);
      ASSERT_EQ(std::ranges::count(watch.calls(), call), 1) << "the call was never made";
    }
    if (!status.ok()) {
      // A full disk is found before the start, and at the end by the model; in between it is an
      // error of the disk.
      const bool does_not_fit = ExitCodeOf(status) == ExitCode::kDoesNotFit;
      EXPECT_TRUE(ExitCodeOf(status) == ExitCode::kStorage ||
                  (does_not_fit && error_number == ENOSPC))
          << status;
      const bool reserves = call.function == "fallocate" || call.file.starts_with("/model");
      if (reserves && error_number == ENOSPC) {
        EXPECT_TRUE(does_not_fit) << status;
      }
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(out_), HasSubstr(ErrnoText(error_number))));
    }
    ExpectResumesTo(expected_, options, status);
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
  const std::string out_ = folder_.Path("run");
  ToyResult expected_;
  std::vector<FileCall> calls_;
};

// A part of the calls, each in one of the two ways, from call to call the other one.
TEST_P(FileFaultsTest, AFailedCallIsAnErrorOrNoneAndTheRunGoesOnToTheSameBits) {
  // The sanitizers take ten times as long; what they look for is much the same in all cases.
  RunCases(FullSuite() ? 1 : kUnderSanitizer ? 11 : 3, /*in_both_ways=*/false);
}

TEST_P(FileFaultsTest, SlowEveryCallFailsInBothWays) {
  RunCases(1, /*in_both_ways=*/true);
}

// Of a process that is killed at one of the calls, the making of the run and of its store among
// them.
TEST_P(FileFaultsTest, AKillAtAnyCallIsAStartAgainOrAResumeToTheSameBits) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(FaultSeed()));
  const std::string only = OnlyCase();
  int num_kills = 0;
  const uint64_t one_in = FullSuite() ? 1 : kUnderSanitizer ? 24 : 6;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const std::string name = fmt::format("kill at {}", NameOf(calls_[i], 0));
    const bool is_drawn = (FaultSeed() + i) % one_in == 0;
    if (only.empty() ? !is_drawn : only != name) continue;
    SCOPED_TRACE("repeat with: " + RepeatCommand(name));
    const TrainOptions options = Prepare();
    const ChildEnd end = RunChild([&](int) {
      const FailingCalls watch(out_, calls_[i], kKillsTheProcess);
      TrainToy(options).IgnoreError();
    });
    ASSERT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL) << end.status;
    ExpectResumesTo(expected_, options, absl::AbortedError(name));
    ASSERT_FALSE(HasFailure()) << "the other cases were left out";
    ++num_kills;
  }
  EXPECT_GT(num_kills, 0);
  std::printf("%d kills over %zu calls\n", num_kills, calls_.size());
}

TEST_P(FileFaultsTest, TheCallsThatMatterAreAmongThem) {
  const auto has = [&](const char* function, const std::string& file) {
    return std::ranges::any_of(calls_, [&](const FileCall& call) {
      return call.function == function && call.file.ends_with(file);
    });
  };
  EXPECT_TRUE(has("rename", "run.json") || resumed());
  EXPECT_TRUE(has("fallocate", "/swap/weights.fbs") || resumed());
  EXPECT_TRUE(has("rename", "/swap/manifest.json") || resumed());
  EXPECT_TRUE(has("flock", "/swap/state.fbs"));
  EXPECT_TRUE(has("open", "/swap/seals.fbs"));
  EXPECT_TRUE(has("open", "/swap/commit.fbs"));
  if (!GetParam().striped) return;
  const auto second_has = [&](const char* function, const std::string& file) {
    return std::ranges::any_of(calls_, [&](const FileCall& call) {
      return call.function == function && call.file.starts_with("/more/") &&
             call.file.ends_with(file);
    });
  };
  EXPECT_TRUE(second_has("fallocate", "/weights.fbs") || resumed());
  EXPECT_TRUE(second_has("rename", "/manifest.json") || resumed());
  EXPECT_TRUE(second_has("flock", "/lock"));
  EXPECT_TRUE(second_has("flock", "/state.fbs"));
  EXPECT_TRUE(second_has("open", "/commit.fbs"));
  EXPECT_TRUE(second_has("fallocate", "/gradients.fbs"));
  EXPECT_TRUE(second_has("flock", "/gradients.fbs"));
  EXPECT_TRUE(has("pwrite", "/metrics.jsonl"));
  EXPECT_TRUE(has("pwrite", "/events.log"));
  EXPECT_TRUE(has("rename", "/model"));
  EXPECT_TRUE(has("fdatasync", "/model.safetensors.tmp"));
}

// Of a part that is new: one that grows holds the lock itself until it is opened anew.
TEST(GradientAreaFaults, ALockThatCannotBeTakenLeavesTheAreaAsItWas) {
  const TemporaryFolder folder(FolderInRam());
  const auto engine = CreateThreadsEngine({.num_threads = 1});
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("weight", {9000}, 0, true);
  auto store =
      TensorStore::Create({.directories = {folder.Path("a"), folder.Path("b")}, .tile_elems = 2048},
                          inventory, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  {
    const FailingCalls watch(folder.path(), FileCall{"flock", "/b/gradients.fbs", 0}, EIO);
    const absl::Status status = (*store)->EnsureScratchArea({4096, 4096});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr(folder.Path("b/gradients.fbs")));
    EXPECT_THAT((*store)->scratch_bytes(), testing::ElementsAre(0, 0));
  }
  EXPECT_EQ((*store)->EnsureScratchArea({4096, 4096}), absl::OkStatus());
  EXPECT_THAT((*store)->scratch_bytes(), testing::ElementsAre(4096, 4096));
}

INSTANTIATE_TEST_SUITE_P(Runs, FileFaultsTest, testing::ValuesIn(kFileSettings),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace forebay
