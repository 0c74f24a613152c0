// One process that computes parts of each micro-batch apart comes to the bits of as many ranks.
#include <filesystem>
#include <functional>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/agree_on_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Each;
using testing::HasSubstr;

class DataParallelTest : public testing::Test {
 protected:
  using Change = std::function<void(TrainOptions&)>;

  // Steps of two micro-batches of four rows, clipped; an epoch's last step has two rows.
  TrainOptions Options(const std::string& name, const Change& change = {}) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.batch = 4;
    options.steps = 4;
    options.warmup = 1;
    options.clip = 0.5;
    options.eval_data = options.data;
    options.eval_every = 2;
    if (change) change(options);
    return options;
  }
  std::string DigestOfSeveral(const TrainOptions& options, int num_ranks) const {
    EXPECT_THAT(TrainRanks(options, {.ranks = {.num_ranks = num_ranks}}), Each(absl::OkStatus()));
    return DigestOfRanks(options.out, num_ranks);
  }
  static std::string DigestOfOne(TrainOptions options, int num_parts) {
    options.data_parallel = num_parts;
    EXPECT_EQ(TrainToy(options), absl::OkStatus());
    const auto result = ResultOf(options.out);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->state : "";
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

TEST_F(DataParallelTest, HasTheBitsOfAsManyRanks) {
  for (const int num : {2, 4}) {
    SCOPED_TRACE(num);
    const TrainOptions ranks = Options("ranks" + std::to_string(num));
    const TrainOptions parts = Options("parts" + std::to_string(num));
    const std::string expected = DigestOfSeveral(ranks, num);
    EXPECT_EQ(DigestOfOne(parts, num), expected);
    for (const char* field : {"loss", "grad_norm", "tokens", "eval_loss"}) {
      EXPECT_EQ(FieldOf(parts.out, field), FieldOf(ranks.out, field)) << field;
    }
    // Another number of parts adds in another order.
    EXPECT_NE(DigestOfOne(Options("whole" + std::to_string(num)), 1), expected);
  }
}

TEST_F(DataParallelTest, HasTheSameBitsWhateverTheSettings) {
  const std::string expected = DigestOfSeveral(Options("ranks"), 2);
  const std::pair<const char*, Change> settings[] = {
      {"disk",
       [](TrainOptions& options) {
         options.weights_tier = options.state_tier = TierChoice::kNvme;
         options.tile_elems = 2048;
       }},
      {"speculate", [](TrainOptions& options) { options.gradients = GradientChoice::kSpeculate; }},
      {"saving", [](TrainOptions& options) { options.recompute = Recompute::kNone; }},
      {"segments", [](TrainOptions& options) { options.number_checkpoints = 1; }},
  };
  for (const auto& [name, change] : settings) {
    EXPECT_EQ(DigestOfOne(Options(name, change), 2), expected) << name;
  }
}

// In bf16, with the least memory that works: what is planned is what is taken.
TEST_F(DataParallelTest, TakesWhatIsPlanned) {
  const auto tight = [](TrainOptions& options) {
    options.precision = cpu::Precision::kBf16;
    options.layout = Layout::kBf16;
    options.grad_dtype = DType::kBF16;
    options.weights_tier = options.state_tier = TierChoice::kNvme;
    options.activations_dtype = DType::kBF16;
  };
  TrainOptions options = Options("tight", tight);
  TrainOptions part = options;
  part.data_parallel = 2;
  ASSERT_EQ(TakePartOfRank(/*rank=*/0, /*num_ranks=*/1, part), absl::OkStatus());
  options.ram_bytes = LeastRam(part);
  EXPECT_EQ(DigestOfOne(options, 2), DigestOfSeveral(Options("ranks", tight), 2));
}

TEST_F(DataParallelTest, GoesOnWhereRanksStopped) {
  const std::string expected = DigestOfSeveral(Options("undisturbed"), 2);
  TrainOptions options = Options("run");
  options.stop_after = 2;
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
  }
  options.stop_after = 0;
  options.resume = true;
  EXPECT_EQ(DigestOfOne(options, 2), expected);
}

TEST_F(DataParallelTest, RefusesWhatCannotBeDivided) {
  const auto expect_refused = [](const TrainOptions& options, const char* words) {
    const absl::Status status = TrainToy(options);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(options.out));
  };
  TrainOptions options = Options("run");
  options.data_parallel = 3;
  expect_refused(options,
                 "--batch=4 rows of a micro-batch cannot be divided among "
                 "--data_parallel=3 parts");
  options.data_parallel = 2;
  options.activations_tier = ActivationsTier::kNvme;
  expect_refused(options, "--set=activations_tier=nvme is not there with --data_parallel=2");
  options.activations_tier = ActivationsTier::kRam;
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("2 ranks divide them already"));
  }
}

}  // namespace
}  // namespace forebay
