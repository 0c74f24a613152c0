// ZeRO's stages: ranks that divide the state come to the bits of ranks that each have all of it,
// and go on with them after whatever happens to one of them.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/train/export/export_run.h"
#include "forebay/train/export/run_state.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/run/inspect.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class ZeroStagesTest : public testing::Test {
 protected:
  explicit ZeroStagesTest(int num_blocks = 2, int intermediate_size = 48)
      : task_(folder_.path(), num_blocks, intermediate_size) {}

  // In fp32, clipped in some steps, with an evaluation on the way.
  TrainOptions Options(int stage, const std::string& name) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name + std::to_string(stage)));
    options.batch = 4;
    options.accum = 1;
    options.clip = 0.5;
    options.zero_stage = stage;
    options.eval_data = options.data;
    options.eval_every = 2;
    return options;
  }
  std::string Digest(const TrainOptions& options, const RankRuns& runs) const {
    EXPECT_THAT(TrainRanks(options, runs), Each(absl::OkStatus()));
    return DigestOfRanks(options.out, runs.ranks.num_ranks);
  }
  // Runs stage 0 and another stage with the same settings.
  void ExpectTheBitsOfStage0(int stage, const std::string& name, const RankRuns& runs = {},
                             const std::function<void(TrainOptions&)>& change = {}) const {
    SCOPED_TRACE(name + ", stage " + std::to_string(stage));
    TrainOptions whole = Options(0, name), divided = Options(stage, name);
    if (change) change(whole);
    if (change) change(divided);
    const bool is_there = std::filesystem::exists(whole.out);
    const std::string expected =
        is_there ? DigestOfRanks(whole.out, runs.ranks.num_ranks) : Digest(whole, runs);
    ASSERT_NE(expected, "");
    EXPECT_EQ(Digest(divided, runs), expected);
    for (int rank = 0; rank < runs.ranks.num_ranks; ++rank) {
      const std::string of_rank = RunFolderOfRank(divided.out, rank);
      for (const char* field : {"loss", "grad_norm", "eval_loss"}) {
        EXPECT_EQ(FieldOf(of_rank, field), FieldOf(whole.out, field)) << field;
      }
    }
    EXPECT_EQ(ModelDigest(RunPaths(divided.out).model).value_or("none"),
              ModelDigest(RunPaths(whole.out).model).value_or("no other"));
  }

  const TemporaryFolder folder_;
  const ToyTask task_;
};

void UseBf16(TrainOptions& options) {
  options.precision = cpu::Precision::kBf16;
  options.layout = Layout::kBf16;
  options.grad_dtype = DType::kBF16;
  options.export_dtype = DType::kBF16;
}

void UseFp16(TrainOptions& options) {
  options.precision = cpu::Precision::kFp16;
  options.layout = Layout::kFp16;
  options.grad_dtype = DType::kF16;
  options.export_dtype = DType::kF16;
}

// Four ranks have layers of which one has everything, and three nothing.
TEST_F(ZeroStagesTest, ComeToTheSameBits) {
  for (const int num_ranks : {2, 4}) {
    const RankRuns runs = {.ranks = {.num_ranks = num_ranks}};
    const std::string of = std::to_string(num_ranks);
    for (const int stage : {1, 2, 3}) {
      ExpectTheBitsOfStage0(stage, "fp32_" + of, runs);
      ExpectTheBitsOfStage0(stage, "bf16_" + of, runs, UseBf16);
    }
  }
}

TEST_F(ZeroStagesTest, ComeToTheSameBitsWhereverTheStateLies) {
  ExpectTheBitsOfStage0(3, "ram", {}, [](TrainOptions& options) {
    options.weights_tier = options.state_tier = TierChoice::kHost;
  });
  ExpectTheBitsOfStage0(3, "spilled", {}, [](TrainOptions& options) {
    options.gradients_tier = TierChoice::kNvme;
    options.tile_elems = 2048;
  });
  ExpectTheBitsOfStage0(3, "one_copy", {}, [](TrainOptions& options) {
    options.durability = Durability::kNone;
    options.commit_every = 2;
  });
  ExpectTheBitsOfStage0(3, "int8", {}, [](TrainOptions& options) {
    UseBf16(options);
    options.layout = Layout::kInt8Moments;
  });
  ExpectTheBitsOfStage0(3, "bf16_moments", {}, [](TrainOptions& options) {
    UseBf16(options);
    options.layout = Layout::kBf16Moments;
  });
  ExpectTheBitsOfStage0(3, "slow", {.ranks = {.num_ranks = 2, .seed = 3}});
}

// Without a clip and with one.
TEST_F(ZeroStagesTest, SpeculateTogether) {
  for (const double clip : {0.0, 0.5}) {
    for (const int stage : {2, 3}) {
      ExpectTheBitsOfStage0(stage, clip == 0 ? "hoped" : "clipped", {}, [&](TrainOptions& options) {
        options.clip = clip;
        options.gradients = GradientChoice::kSpeculate;
      });
    }
  }
}

// All skip a step that overflows in one part.
TEST_F(ZeroStagesTest, SkipTheSameSteps) {
  ExpectTheBitsOfStage0(3, "fp16", {}, [](TrainOptions& options) {
    UseFp16(options);
    options.initial_scale_power = 20;
    options.hysteresis = 1;
    options.steps = 12;
  });
}

// Settings of a group of which a rank may have no element.
TEST_F(ZeroStagesTest, HaveParameterGroups) {
  ExpectTheBitsOfStage0(3, "groups", {.ranks = {.num_ranks = 4}}, [](TrainOptions& options) {
    options.param_groups = {{.match = "model.norm.weight", .lr = 1e-3, .weight_decay = 0.2}};
  });
}

class DeepRunTest : public ZeroStagesTest {
 protected:
  DeepRunTest() : ZeroStagesTest(/*num_blocks=*/6) {}
};

// Layers are gathered once more for the forward pass inside their segment.
TEST_F(DeepRunTest, GoThroughSegments) {
  for (const int stage : {1, 3}) {
    ExpectTheBitsOfStage0(stage, "segments", {},
                          [](TrainOptions& options) { options.number_checkpoints = 3; });
  }
}

TEST_F(DeepRunTest, EachComputesAgainWhatItLikes) {
  RankRuns runs;
  runs.change = [](int rank, TrainOptions& options) {
    options.recompute = rank == 0 ? Recompute::kNone : Recompute::kAttention;
  };
  ExpectTheBitsOfStage0(3, "recompute", runs);
}

TEST_F(DeepRunTest, RefuseDifferentSegments) {
  RankRuns runs;
  runs.change = [](int rank, TrainOptions& options) {
    if (rank == 1) options.number_checkpoints = 3;
  };
  for (const absl::Status& status : TrainRanks(Options(3, "run"), runs)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("(--set=number_checkpoints) is 1 on rank 0"));
  }
}

// The files of this process that lie in `folder` and have no name there.
int64_t BytesOfUnnamedFiles(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    const bool is_in_folder = target.starts_with(folder + "/") &&
                              target.find('/', folder.size() + 1) == std::string::npos;
    if (!is_in_folder || !target.ends_with(" (deleted)")) continue;
    struct stat file = {};
    if (::stat(entry.path().c_str(), &file) == 0) bytes += file.st_size;
  }
  return bytes;
}

class DividedRunTest : public ZeroStagesTest {
 protected:
  void SetUp() override {
    expected_ = Digest(Options(3, "undisturbed"), {});
    ASSERT_NE(expected_, "");
  }
  // Goes on with a run on both ranks, or begins it where it never was.
  void ExpectToGoOn(TrainOptions options) const {
    const auto json = ReadRunJson(options.out);
    options.resume = json.ok() && (*json)["state"] == kRunReady;
    EXPECT_EQ(Digest(options, {}), expected_);
  }

  // `rank` is asked to stop once the step is done.
  static void ExpectToStopBehind(int64_t step, int rank, const TrainOptions& options) {
    RankRuns runs;
    runs.stop = [&, rank](int asked) {
      const auto done = StepsInMetrics(RunFolderOfRank(options.out, rank));
      return asked == rank && !done.empty() && done.back() == step;
    };
    for (const absl::Status& status : TrainRanks(options, runs)) {
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
      EXPECT_THAT(MessageOf(status),
                  HasSubstr(fmt::format("after step {} of {}", step, options.steps)));
    }
  }

  std::string expected_;
};

TEST_F(DividedRunTest, DiesBeforeAnyExchange) {
  // Until it does not come so far any more.
  for (int64_t exchange = 0;; exchange += 11) {
    SCOPED_TRACE(exchange);
    const TrainOptions options = Options(3, "died" + std::to_string(exchange) + "_");
    RankRuns runs;
    runs.ranks.faults = {{ThreadFaultKind::kDies, /*rank=*/1, exchange}};
    const std::vector<absl::Status> statuses = TrainRanks(options, runs);
    if (statuses[0].ok()) {
      // The other may have died in the last exchange of all, which the first was through with.
      if (!statuses[1].ok()) ExpectToGoOn(options);
      EXPECT_GT(exchange, 60);
      return;
    }
    EXPECT_EQ(ExitCodeOf(statuses[0]), ExitCode::kEnvironment) << statuses[0];
    EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("rank 1"));
    ExpectToGoOn(options);
  }
}

// The window's error is the reason that the others have.
TEST_F(DividedRunTest, LosesADisk) {
  const TrainOptions options = Options(3, "lost");
  ExpectEndByALostDisk(options);
  ExpectToGoOn(options);
}

TEST_F(DividedRunTest, StopsAndGoesOn) {
  for (const int rank : {0, 1}) {
    TrainOptions options = Options(3, "stopped" + std::to_string(rank) + "_");
    options.commit_every = 100;
    RankRuns runs;
    runs.stop = [&, rank](int asked) {
      return asked == rank && !StepsInMetrics(RunFolderOfRank(options.out, rank)).empty();
    };
    EXPECT_THAT(TrainRanks(options, runs),
                Each(testing::ResultOf(ExitCodeOf, ExitCode::kInterrupted)));
    ExpectToGoOn(options);
  }
}

// One rank exports, and any may be asked to stop.
TEST_F(DividedRunTest, StopsInTheExportAtItsEnd) {
  for (const int rank : {0, 1}) {
    TrainOptions options = Options(3, "unexported" + std::to_string(rank) + "_");
    ExpectToStopBehind(options.steps, rank, options);
    const std::string model = RunPaths(options.out).model;
    EXPECT_FALSE(std::filesystem::exists(model));
    ExpectToGoOn(options);
    EXPECT_TRUE(std::filesystem::exists(model));
  }
}

TEST_F(DividedRunTest, StopsInAnExportOnItsWayAndMakesUpForIt) {
  for (const int rank : {0, 1}) {
    TrainOptions options = Options(3, "unsaved" + std::to_string(rank) + "_");
    options.save_every = 2;
    ExpectToStopBehind(2, rank, options);
    const std::string exported = JoinPath(RunPaths(options.out).exports, "step-2");
    EXPECT_FALSE(std::filesystem::exists(exported));
    options.keep = 100;
    ExpectToGoOn(options);
    EXPECT_TRUE(ModelDigest(exported).ok());
  }
}

// A crash may come when one of them has written the result, and another has not.
TEST_F(DividedRunTest, EvaluatesTogetherWhatOneHasNoResultOf) {
  for (const int rank : {0, 1}) {
    TrainOptions options = Options(3, "unevaluated" + std::to_string(rank) + "_");
    options.stop_after = 2;
    EXPECT_THAT(TrainRanks(options), Each(testing::ResultOf(ExitCodeOf, ExitCode::kInterrupted)));
    options.stop_after = 0;
    const std::string of_rank = RunFolderOfRank(options.out, rank);
    const std::vector<double> losses = FieldOf(of_rank, "eval_loss");
    std::filesystem::remove(RunPaths(of_rank).metrics);
    ExpectToGoOn(options);
    const std::vector<double> again = FieldOf(of_rank, "eval_loss");
    ASSERT_FALSE(again.empty());
    EXPECT_EQ(again.front(), losses.back());
  }
}

// Stages 1 to 3 have the same folders: they differ in the weights that are kept in RAM.
TEST_F(DividedRunTest, GoesOnWithAnotherStageThatDividesTheState) {
  TrainOptions options = Options(3, "other");
  options.stop_after = 2;
  EXPECT_THAT(TrainRanks(options), Each(testing::ResultOf(ExitCodeOf, ExitCode::kInterrupted)));
  options.stop_after = 0;
  options.zero_stage = 1;
  ExpectToGoOn(options);
}

// Its folders, as whoever has one of them sees them.
TEST_F(DividedRunTest, IsOneRunInAllItsFolders) {
  const std::string out = Options(3, "undisturbed").out;
  const std::string second = RunFolderOfRank(out, 1);
  for (const std::string& folder : {out, second}) {
    const auto json = Inspect(folder, {.hash = true});
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ((*json)["digest"], expected_);
    EXPECT_EQ((*json)["part"], Json({{"number", folder == out ? 0 : 1}, {"of", 2}}));
  }
  ExportRunOptions request;
  request.run = second + "/";
  request.out = folder_.Path("exported");
  request.progress = [](double) { return absl::OkStatus(); };
  request.dtype = DType::kF32;
  const auto exported = ExportRun(request);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(ModelDigest(exported->folder).value_or(""), ModelDigest(RunPaths(out).model).value());

  std::filesystem::rename(second, folder_.Path("away"));
  const auto lacking = Inspect(out, {.hash = true});
  EXPECT_EQ(ExitCodeOf(lacking.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(lacking.status()), AllOf(HasSubstr(second), HasSubstr("part 1 of the 2")));
}

// Among any number of ranks, divided or not: the state is the same to the bit, and comes back.
TEST_F(DividedRunTest, IsCopiedByAnyOtherNumberOfRanks) {
  TrainOptions options = Options(3, "origin");
  options.stop_after = 2;
  EXPECT_THAT(TrainRanks(options), Each(testing::ResultOf(ExitCodeOf, ExitCode::kInterrupted)));
  options.stop_after = 0;
  const std::string origin = DigestOfRanks(options.out, 2);
  ASSERT_NE(origin, "");
  for (const int stage : {3, 0}) {
    options.from = options.out;
    options.out = folder_.Path("of_four_" + std::to_string(stage));
    options.zero_stage = stage;
    RankRuns runs = {.ranks = {.num_ranks = 4}};
    runs.stop = [&](int rank) {  // before its first step
      const auto json = ReadRunJson(RunFolderOfRank(options.out, rank));
      return json.ok() && (*json)["state"] == kRunReady;
    };
    EXPECT_THAT(TrainRanks(options, runs),
                Each(testing::ResultOf(ExitCodeOf, ExitCode::kInterrupted)));
    EXPECT_EQ(DigestOfRanks(options.out, 4), origin);
  }
  options.from = options.out;
  options.out = folder_.Path("of_two");
  options.zero_stage = 1;
  EXPECT_EQ(Digest(options, {}), expected_);

  options.from = Options(3, "origin").out;
  options.out = folder_.Path("alone");
  EXPECT_EQ(TrainToy(options), absl::OkStatus());
  const double of_two = FieldOf(folder_.Path("of_two"), "loss").back();
  EXPECT_NEAR(FieldOf(options.out, "loss").back(), of_two, 1e-5 * of_two);
}

// Codes of moments and their scales too.
TEST_F(ZeroStagesTest, AreCopiedInEveryLayout) {
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(NameOf(layout));
    TrainOptions options = Options(3, std::string(NameOf(layout)));
    if (WeightDType(layout) == DType::kBF16) UseBf16(options);
    if (WeightDType(layout) == DType::kF16) UseFp16(options);
    options.layout = layout;
    const std::string whole = Digest(options, {});
    options.stop_after = 2;
    options.out += "_origin";
    EXPECT_THAT(TrainRanks(options), Each(testing::ResultOf(ExitCodeOf, ExitCode::kInterrupted)));
    options.stop_after = 0;
    options.from = options.out;
    options.out += "_copied";
    options.zero_stage = 0;
    EXPECT_EQ(Digest(options, {}), whole);
  }
}

// A copy is made from any of a run's folders, beside others that read them.
TEST_F(DividedRunTest, IsOnlyReadWhereItIsCopied) {
  TrainOptions options = Options(3, "undisturbed");
  options.from = RunFolderOfRank(options.out, 1) + "/.";
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  const auto reader = RunState::Open(options.out, engine.get());
  ASSERT_TRUE(reader.ok()) << reader.status();
  options.out = folder_.Path("copy");
  options.zero_stage = 0;
  EXPECT_EQ(Digest(options, {}), expected_);

  const auto reader_of_copy = RunState::Open(options.out, engine.get());
  ASSERT_TRUE(reader_of_copy.ok()) << reader_of_copy.status();
  options.from = options.out;
  options.out = folder_.Path("copy_of_copy");
  EXPECT_EQ(Digest(options, {}), expected_);
}

TEST_F(DividedRunTest, IsNotMixedWithAnother) {
  const std::string out = Options(3, "undisturbed").out;
  TrainOptions other = Options(3, "other");
  other.lr *= 2;
  ASSERT_THAT(TrainRanks(other), Each(absl::OkStatus()));
  const std::string second = RunFolderOfRank(out, 1);
  std::filesystem::remove_all(second);
  std::filesystem::rename(RunFolderOfRank(other.out, 1), second);
  const auto mixed = Inspect(out, {.hash = true});
  EXPECT_EQ(ExitCodeOf(mixed.status()), ExitCode::kCorrupt) << mixed.status();
  EXPECT_THAT(MessageOf(mixed.status()), AllOf(HasSubstr("'" + out + "'"), HasSubstr(second)));
}

// As much as where one rank has all of the model that is exported at the end.
TEST_F(DividedRunTest, HoldsRoomForTheWholeModel) {
  std::vector<int64_t> held_bytes;
  for (const int stage : {0, 3}) {
    const TrainOptions options = Options(stage, "room");
    int64_t held = 0;
    RankRuns runs;
    runs.stop = [&](int rank) {
      // A start tries the disk with such a file too.
      const bool is_in_step = rank == 0 && !StepsInMetrics(options.out).empty();
      if (is_in_step) held = std::max(held, BytesOfUnnamedFiles(options.out));
      return false;
    };
    EXPECT_THAT(TrainRanks(options, runs), Each(absl::OkStatus()));
    held_bytes.push_back(held);
  }
  EXPECT_GT(held_bytes[0], 0);
  EXPECT_EQ(held_bytes[1], held_bytes[0]);
}

TEST_F(DividedRunTest, IsNotCopiedWithoutAllItsFolders) {
  TrainOptions options = Options(3, "undisturbed");
  std::filesystem::rename(RunFolderOfRank(options.out, 1), folder_.Path("away"));
  options.from = options.out;
  options.out = folder_.Path("copy");
  const absl::Status status = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr(RunFolderOfRank(options.from, 1)));
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

// Nothing is guessed.
TEST_F(DividedRunTest, RefusesAnotherDivision) {
  TrainOptions options = Options(3, "undisturbed");
  options.resume = true;
  const auto refuses = [&](const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
      EXPECT_THAT(MessageOf(status), HasSubstr("divided among 2 ranks"));
    }
  };
  refuses({TrainToy(options)});
  options.zero_stage = 0;
  refuses(TrainRanks(options));
  EXPECT_EQ(DigestOfRanks(options.out, 2), expected_);
}

// On the way, too, of which the newest are kept.
TEST_F(ZeroStagesTest, ExportWhatOneRankWithAllOfItExports) {
  for (const int stage : {0, 1, 3}) {
    TrainOptions options = Options(stage, "saved");
    options.save_every = 1;
    options.keep = 2;
    EXPECT_THAT(TrainRanks(options), Each(absl::OkStatus()));
    const RunPaths paths(options.out), of_stage0(Options(0, "saved").out);
    const auto names = ListFolder(paths.exports);
    ASSERT_TRUE(names.ok()) << names.status();
    EXPECT_EQ(*names, ListFolder(of_stage0.exports).value());
    EXPECT_EQ(names->size(), 2);
    for (const std::string& name : *names) {
      const auto digest = ModelDigest(JoinPath(paths.exports, name));
      ASSERT_TRUE(digest.ok()) << digest.status();
      EXPECT_EQ(*digest, *ModelDigest(JoinPath(of_stage0.exports, name))) << name;
      EXPECT_NE(*digest, *ModelDigest(paths.model)) << name;
    }
  }
}

// The same of all stages, twice, and not those of fp32, to which they come close.
TEST_F(ZeroStagesTest, ComeToTheSameBitsWithGradientsOf16BitsOnTheirWay) {
  const auto on_their_way = [](TrainOptions& options) { options.reduce_dtype = DType::kBF16; };
  for (const int stage : {2, 3}) ExpectTheBitsOfStage0(stage, "narrow", {}, on_their_way);
  const TrainOptions narrow = Options(0, "narrow"), wide = Options(0, "wide");
  EXPECT_NE(Digest(wide, {}), DigestOfRanks(narrow.out, 2));
  const std::vector<double> losses = LossesOf(narrow.out), of_wide = LossesOf(wide.out);
  ASSERT_EQ(losses.size(), of_wide.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], of_wide[i], 0.01) << i;
}

// Layers of some 50 blocks: each one's sum comes through a bucket of 8.
class SmallBucketTest : public ZeroStagesTest {
 protected:
  SmallBucketTest() : ZeroStagesTest(/*num_blocks=*/2, /*intermediate_size=*/1024) {}
  // A run comes to this, and each of its two ranks sent that.
  struct Result {
    std::string digest;
    std::vector<int64_t> sent_bytes;
    bool operator==(const Result&) const = default;
  };
  Result Run(int stage, int64_t bucket_bytes, const std::function<void(TrainOptions&)>& change) {
    TrainOptions options = Options(stage, "run" + std::to_string(num_runs_++) + "_");
    options.reduce_bucket_bytes = bucket_bytes;
    options.eval_every = 0;
    options.export_format = ExportFormat::kNone;
    change(options);
    std::vector<CollectiveTraffic> traffic;
    RankRuns runs;
    runs.traffic = &traffic;
    Result result = {Digest(options, runs), {}};
    for (const CollectiveTraffic& of_rank : traffic) {
      result.sent_bytes.push_back(of_rank.sent_bytes);
    }
    return result;
  }

 private:
  int num_runs_ = 0;
};

TEST_F(SmallBucketTest, ComesToTheSameBitsWithTheSameTraffic) {
  const auto speculate = [](TrainOptions& options) {
    options.gradients = GradientChoice::kSpeculate;
    options.clip = 0;
  };
  const auto spill = [](TrainOptions& options) {
    options.gradients_tier = TierChoice::kNvme;
    options.tile_elems = 6144;
  };
  for (const int stage : {0, 3}) {
    SCOPED_TRACE(stage);
    EXPECT_EQ(Run(stage, 1, speculate), Run(stage, 0, speculate));
    EXPECT_EQ(Run(stage, 1, spill), Run(stage, 0, spill));
  }
}

}  // namespace
}  // namespace forebay
