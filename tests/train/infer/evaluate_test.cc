#include "forebay/train/infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/tests/data/packed_bytes.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/infer/model_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;
using testing::MakeTinyModel;
using testing::Runner;
using testing::TinyModel;

constexpr int64_t kSeq = 8;
constexpr int64_t kRowsPerBatch = 2;

// Packed rows of random tokens. Every row has one long and one short segment, and trains another
// number of tokens than the row before, so that a mean of means differs from the mean.
PackedBytes MakeRows(int64_t num_rows, int64_t seq, int64_t vocab_size) {
  PackedBytes bytes;
  bytes.num_rows = num_rows;
  bytes.seq = seq;
  bytes.vocab_size = vocab_size;
  bytes.num_samples = 2 * num_rows;
  bytes.longest_segment = seq - 3;
  bytes.num_trained = 0;
  bytes.tokens.clear();
  bytes.flags.clear();
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t num_trained = row % (seq - 4) + 1;
    for (int64_t i = 0; i < seq; ++i) {
      bytes.tokens.push_back((31 * row + 7 * i * i + 3 * i) % vocab_size);
      const bool starts = i == 0 || i == seq - 3;
      const bool trained = !starts && i <= num_trained;
      bytes.flags.push_back(starts ? kTokenSegmentStart : trained ? kTokenTrained : 0);
      bytes.num_trained += trained ? 1 : 0;
    }
  }
  // Padding at the end of the last row is neither token nor target.
  bytes.tokens.back() = 0;
  bytes.flags.back() = kTokenPadding;
  bytes.num_tokens = num_rows * seq - 1;
  return bytes;
}

class EvaluateTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Open(const PackedBytes& bytes) {
    const std::string path = folder_.Path("rows.packed");
    std::ofstream(path, std::ios::binary) << bytes.Encode();
    auto data = PackedFile::Open(path);
    ASSERT_TRUE(data.ok()) << data.status();
    data_ = *std::move(data);
  }

  // With room for that many micro-batches in one pass over the weights.
  absl::StatusOr<EvaluationResult> Run(int64_t batches_per_pass,
                                       int64_t rows_per_batch = kRowsPerBatch) {
    EvaluateOptions options;
    options.rows_per_micro_batch = rows_per_batch;
    MemoryBudget budget(int64_t{1} << 30);
    FOREBAY_ASSIGN_OR_RETURN(
        const std::unique_ptr<DecoderCompute> compute,
        DecoderCompute::CreateForEvaluation(
            &runner_.decoder(), batches_per_pass * rows_per_batch * data_->info().seq, &budget));
    options.progress = [&](double fraction) -> absl::Status {
      fractions_.push_back(fraction);
      return progress_status_;
    };
    return Evaluate(
        {runner_.decoder().config(), *compute, runner_.source(), compute->most_forward_tokens()},
        *data_, options);
  }

  const TinyModel model_ = MakeTinyModel(GetParam());
  Runner runner_{model_, {2, cpu::Precision::kFp32, /*max_tokens=*/4 * kSeq, /*training=*/false}};
  TemporaryFolder folder_;
  std::unique_ptr<PackedFile> data_;
  std::vector<double> fractions_;
  absl::Status progress_status_;
};

INSTANTIATE_TEST_SUITE_P(Models, EvaluateTest,
                         ::testing::Values("LlamaGroupedTied", "LlamaBiasesUntied", "Gpt2"));

TEST_P(EvaluateTest, TheLossIsTheMeanOverAllTrainedTokens) {
  Open(MakeRows(7, kSeq, model_.config.vocab_size));
  double loss_sum = 0;
  int64_t num_trained = 0;
  for (int64_t row = 0; row < 7; ++row) {
    MicroBatch batch;
    ASSERT_TRUE(data_->ReadRows(std::vector<int64_t>{row}, batch).ok());
    loss_sum += reference::RunReference(model_.config, model_.inventory, model_.weights, batch, 1.0)
                    .loss_sum;
    num_trained += batch.num_trained;
  }
  const auto result = Run(2);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->loss, loss_sum / num_trained, 1e-5 * result->loss);
  EXPECT_DOUBLE_EQ(result->perplexity, std::exp(result->loss));
  EXPECT_EQ(result->num_trained, num_trained);
  EXPECT_EQ(result->num_tokens, 7 * kSeq - 1);
}

TEST_P(EvaluateTest, TheBitsDoNotDependOnTheMicroBatchesOfOnePass) {
  // 21 micro-batches, the last of one row: so many that another order of adding their losses shows.
  Open(MakeRows(41, kSeq, model_.config.vocab_size));
  const auto expected = Run(1);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const int64_t batches_per_pass : {2, 3, 4, 7, 10, 20, 21, 30}) {
    const auto result = Run(batches_per_pass);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->loss, expected->loss) << batches_per_pass;
  }
}

TEST_P(EvaluateTest, AnUnevenLastMicroBatchCountsLikeTheOthers) {
  Open(MakeRows(5, kSeq, model_.config.vocab_size));
  const auto one_row_each = Run(1, 1);
  const auto last_of_two = Run(1, 3);
  const auto last_of_one = Run(2, 4);
  ASSERT_TRUE(one_row_each.ok() && last_of_two.ok() && last_of_one.ok());
  // Products over other numbers of rows may round otherwise.
  EXPECT_NEAR(last_of_two->loss, one_row_each->loss, 1e-6 * one_row_each->loss);
  EXPECT_NEAR(last_of_one->loss, one_row_each->loss, 1e-6 * one_row_each->loss);
}

TEST_P(EvaluateTest, AcquiresExactlyWhatItAnnounces) {
  Open(MakeRows(7, kSeq, model_.config.vocab_size));
  ASSERT_TRUE(Run(3).ok());
  EXPECT_EQ(runner_.source().num_still_expected(), 0u);
  EXPECT_LE(runner_.source().most_leases_held(), 2);
}

TEST_P(EvaluateTest, ProgressRisesFromNothingTowardsOne) {
  Open(MakeRows(7, kSeq, model_.config.vocab_size));
  ASSERT_TRUE(Run(2).ok());
  ASSERT_FALSE(fractions_.empty());
  EXPECT_TRUE(std::ranges::is_sorted(fractions_));
  EXPECT_GE(fractions_.front(), 0.0);
  EXPECT_LE(fractions_.back(), 1.0);
  EXPECT_GT(fractions_.back(), 0.5);
}

TEST_P(EvaluateTest, AFailureOfProgressEndsIt) {
  Open(MakeRows(7, kSeq, model_.config.vocab_size));
  progress_status_ = InterruptedError("enough");
  EXPECT_EQ(ExitCodeOf(Run(2).status()), ExitCode::kInterrupted);
  EXPECT_EQ(fractions_.size(), 1u);
}

TEST_P(EvaluateTest, AFailureOfTheSourceIsReturned) {
  Open(MakeRows(7, kSeq, model_.config.vocab_size));
  runner_.source().FailAfter(2);
  EXPECT_THAT(MessageOf(Run(2).status()), HasSubstr("told to fail"));
}

TEST_P(EvaluateTest, DataOfALargerVocabularyIsRefused) {
  Open(MakeRows(2, kSeq, model_.config.vocab_size + 1));
  const auto result = Run(1);
  EXPECT_EQ(ExitCodeOf(result.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(result.status()), HasSubstr("rows.packed"));
  EXPECT_THAT(MessageOf(result.status()), HasSubstr("but the model has"));
}

TEST_P(EvaluateTest, RowsLongerThanTheModelsPositionsAreRefused) {
  Open(MakeRows(2, model_.config.max_positions + 1, model_.config.vocab_size));
  const auto result = Run(1);
  EXPECT_EQ(ExitCodeOf(result.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(result.status()), HasSubstr("Pack it with --seq=64 or less"));
}

TEST(CheckModelFits, TheNeedIsSaidToBeMoreThanTheBudget) {
  const int64_t mib = int64_t{1} << 20;
  EXPECT_EQ(CheckModelFits(943 * mib, 943 * mib), absl::OkStatus());
  EXPECT_THAT(MessageOf(CheckModelFits(943 * mib + 400'000, 943 * mib + 300'000)),
              HasSubstr("needs at least 944 MiB of memory here, but the budget is 943 MiB. Use "
                        "--ram=944MiB"));
}

}  // namespace
}  // namespace forebay
