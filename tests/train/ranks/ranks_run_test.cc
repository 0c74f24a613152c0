// Ranks that divide the data: what one process computes with all of it, they compute together, and
// all of them come to the same bits.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

class RanksRunTest : public testing::Test {
 protected:
  // In fp32, with four rows a step in two micro-batches.
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.batch = 2;
    options.steps = 4;
    options.warmup = 1;
    return options;
  }
  // The digest of a run that has to succeed.
  std::string Digest(const TrainOptions& options, const RankRuns& runs = {}) {
    EXPECT_THAT(TrainRanks(options, runs), Each(absl::OkStatus()));
    return DigestOfRanks(options.out, runs.ranks.num_ranks);
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

void ExpectLossesNear(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * std::abs(expected[i])) << "step " << i + 1;
  }
}

TEST_F(RanksRunTest, ComputeWhatOneProcessComputesWithAllTheData) {
  const TrainOptions alone = Options("alone");
  ASSERT_EQ(TrainToy(alone), absl::OkStatus());
  const TrainOptions together = Options("together");
  Digest(together);
  ExpectLossesNear(LossesOf(together.out), LossesOf(alone.out));
  EXPECT_EQ(FieldOf(together.out, "tokens"), FieldOf(alone.out, "tokens"));
  // And every rank has the same of both.
  const std::string second = RunFolderOfRank(together.out, 1);
  EXPECT_EQ(LossesOf(second), LossesOf(together.out));
  EXPECT_EQ(FieldOf(second, "grad_norm"), FieldOf(together.out, "grad_norm"));
}

// An epoch of six rows: its second step has two, and four ranks.
TEST_F(RanksRunTest, SomeMayHaveNoRowsOfAnEpochsLastStep) {
  TrainOptions alone = Options("alone");
  alone.batch = 4;
  alone.accum = 1;
  ASSERT_EQ(TrainToy(alone), absl::OkStatus());
  TrainOptions together = alone;
  together.out = folder_.Path("together");
  Digest(together, {.ranks = {.num_ranks = 4}});
  ExpectLossesNear(LossesOf(together.out), LossesOf(alone.out));
  EXPECT_EQ(FieldOf(together.out, "tokens"), FieldOf(alone.out, "tokens"));
}

TEST_F(RanksRunTest, ComeToTheSameBitsWhateverTheTiersAndTheOrderOfMessages) {
  const std::string expected = Digest(Options("expected"));
  ASSERT_NE(expected, "");
  EXPECT_EQ(Digest(Options("again")), expected);
  EXPECT_EQ(Digest(Options("slow"), {.ranks = {.num_ranks = 2, .seed = 3}}), expected);
  TrainOptions in_ram = Options("ram");
  in_ram.weights_tier = in_ram.state_tier = TierChoice::kHost;
  EXPECT_EQ(Digest(in_ram), expected);
  TrainOptions seldom = Options("seldom");
  seldom.commit_every = 3;
  EXPECT_EQ(Digest(seldom), expected);
  TrainOptions one_copy = Options("none");
  one_copy.durability = Durability::kNone;
  EXPECT_EQ(Digest(one_copy), expected);
  // Ranks need not be alike in where the state lies.
  RankRuns different;
  different.change = [](int rank, TrainOptions& options) {
    if (rank == 1) options.weights_tier = options.state_tier = TierChoice::kHost;
  };
  EXPECT_EQ(Digest(Options("different"), different), expected);
}

// The norm is that of all ranks, so all of them hope, or compute the pass again.
TEST_F(RanksRunTest, SpeculateTogether) {
  for (const double clip : {0.0, 0.05}) {
    TrainOptions held = Options(clip == 0 ? "held" : "held_clipped");
    held.clip = clip;
    TrainOptions speculative = held;
    speculative.out += "_speculative";
    speculative.gradients = GradientChoice::kSpeculate;
    EXPECT_EQ(Digest(speculative), Digest(held)) << clip;
  }
}

// Some steps overflow, and are skipped by all.
TEST_F(RanksRunTest, SkipTheSameSteps) {
  TrainOptions options = Options("fp16");
  options.precision = cpu::Precision::kFp16;
  options.layout = Layout::kFp16;
  options.grad_dtype = DType::kF16;
  options.export_dtype = DType::kF16;
  options.initial_scale_power = 20;
  options.hysteresis = 1;
  options.steps = 12;
  EXPECT_NE(Digest(options), "");
  const std::vector<double> scales = FieldOf(options.out, "loss_scale");
  EXPECT_EQ(FieldOf(RunFolderOfRank(options.out, 1), "loss_scale"), scales);
  ASSERT_THAT(scales, SizeIs(12));
  EXPECT_LT(scales.back(), scales.front());
}

TEST_F(RanksRunTest, RefuseWhatCannotBeDivided) {
  TrainOptions options = Options("run");
  options.batch = 3;
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("--batch=3"));
  }
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST_F(RanksRunTest, RefuseDifferentSettings) {
  const TrainOptions options = Options("run");
  RankRuns runs;
  runs.change = [](int rank, TrainOptions& of_rank) {
    if (rank == 1) of_rank.stop_after = 2;
  };
  for (const absl::Status& status : TrainRanks(options, runs)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("--stop_after is 0 on rank 0"));
  }
  EXPECT_FALSE(IsRunFolder(options.out));
  EXPECT_FALSE(IsRunFolder(RunFolderOfRank(options.out, 1)));
}

TEST_F(RanksRunTest, NameTheFlagThatWouldChangeTheResult) {
  RankRuns runs;
  runs.change = [](int rank, TrainOptions& of_rank) { of_rank.lr = rank == 1 ? 0.5 : 0.25; };
  for (const absl::Status& status : TrainRanks(Options("run"), runs)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("--lr is \"0.25\" on rank 0"));
    EXPECT_THAT(MessageOf(status), HasSubstr("\"0.5\" on rank 1"));
  }
}

// Rank 0 has the model; the others have no export.
TEST_F(RanksRunTest, OneRankExports) {
  TrainOptions options = Options("run");
  options.save_every = 2;
  EXPECT_NE(Digest(options), "");
  EXPECT_TRUE(ModelDigest(RunPaths(options.out).model).ok());
  EXPECT_TRUE(std::filesystem::exists(RunPaths(options.out).exports));
  const RunPaths second(RunFolderOfRank(options.out, 1));
  EXPECT_FALSE(std::filesystem::exists(second.model));
  EXPECT_FALSE(std::filesystem::exists(second.exports));
}

}  // namespace
}  // namespace forebay
