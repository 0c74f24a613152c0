#include "forebay/data/row_sampler.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"

namespace forebay {
namespace {

std::vector<int64_t> RowsOfEpoch(RowSampler& sampler, int64_t epoch, int64_t rows_per_step) {
  std::vector<int64_t> all;
  const int64_t steps = sampler.StepsPerEpoch(rows_per_step);
  for (int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
    const auto rows = sampler.RowsOfStep(step, rows_per_step);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

TEST(RowSampler, EveryEpochHasEveryRowOnce) {
  for (const int64_t num_rows : {1, 2, 7, 64, 1000}) {
    RowSampler sampler(num_rows, 3);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> rows = RowsOfEpoch(sampler, epoch, 6);
      std::sort(rows.begin(), rows.end());
      std::vector<int64_t> expected(static_cast<size_t>(num_rows));
      std::iota(expected.begin(), expected.end(), int64_t{0});
      EXPECT_EQ(rows, expected);
    }
  }
}

TEST(RowSampler, LastStepOfAnEpochHasWhatIsLeft) {
  RowSampler sampler(10, 0);
  EXPECT_EQ(sampler.StepsPerEpoch(4), 3);
  EXPECT_EQ(sampler.RowsOfStep(1, 4).size(), 4u);
  EXPECT_EQ(sampler.RowsOfStep(2, 4).size(), 2u);
  EXPECT_EQ(sampler.RowsOfStep(3, 4).size(), 4u);
}

TEST(RowSampler, StepLargerThanTheDataIsTheWholeEpoch) {
  RowSampler sampler(5, 0);
  EXPECT_EQ(sampler.StepsPerEpoch(8), 1);
  EXPECT_EQ(sampler.RowsOfStep(0, 8).size(), 5u);
}

TEST(RowSampler, EpochsAndSeedsDiffer) {
  RowSampler sampler(100, 1);
  RowSampler other(100, 2);
  const auto first = sampler.RowsOfStep(0, 100);
  EXPECT_NE(first, sampler.RowsOfStep(1, 100));
  EXPECT_NE(first, other.RowsOfStep(0, 100));
}

TEST(RowSampler, StepDependsOnItsNumberAlone) {
  RowSampler straight(50, 9);
  std::vector<std::vector<int64_t>> steps;
  for (int64_t step = 0; step < 40; ++step) steps.push_back(straight.RowsOfStep(step, 4));
  for (int64_t step = 39; step >= 0; --step) {
    RowSampler resumed(50, 9);
    EXPECT_EQ(resumed.RowsOfStep(step, 4), steps[static_cast<size_t>(step)]);
    EXPECT_EQ(straight.RowsOfStep(step, 4), steps[static_cast<size_t>(step)]);
  }
}

TEST(RowSampler, OrderOfRowsIsTheSameForEveryStepSize) {
  RowSampler sampler(60, 4);
  EXPECT_EQ(RowsOfEpoch(sampler, 1, 7), RowsOfEpoch(sampler, 1, 60));
}

// A frozen example: a change of the order would break the resume of runs that exist.
TEST(RowSampler, OrderIsFrozen) {
  RowSampler sampler(8, 42);
  EXPECT_THAT(sampler.RowsOfStep(0, 8), testing::ElementsAre(7, 0, 6, 2, 4, 1, 5, 3));
}

// Each row comes first in about the same number of epochs (chi-squared with 9 degrees of freedom, p
// < 1e-6).
TEST(RowSampler, NoPlaceIsPreferred) {
  RowSampler sampler(10, 5);
  std::vector<double> count(10, 0);
  for (int64_t epoch = 0; epoch < 5000; ++epoch)
    ++count[static_cast<size_t>(sampler.RowsOfStep(epoch, 10)[0])];
  double chi_squared = 0;
  for (const double n : count) chi_squared += (n - 500) * (n - 500) / 500;
  EXPECT_LT(chi_squared, 45);
}

}  // namespace
}  // namespace forebay
