// The decoder against the float64 reference: losses and every tensor's gradient, for every family.
#include <cmath>

#include "fmt/format.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

DecoderOptions Fp32Options(int num_threads = 2) {
  return {num_threads, cpu::Precision::kFp32, /*max_tokens=*/48, /*training=*/true};
}

double Norm(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// |actual - expected| / |expected| in the L2 norm. `floor`: added to the denominator, for gradients
// that are zero but for rounding.
double RelativeError(std::span<const float> actual, std::span<const double> expected,
                     double floor) {
  std::vector<double> difference(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) difference[i] = actual[i] - expected[i];
  return Norm(difference) / (Norm(expected) + floor);
}

void ExpectGradientsNear(const TinyModel& model, Runner& runner,
                         const reference::ReferenceResult& expected, double tolerance) {
  for (const TensorSpec& tensor : model.inventory.tensors()) {
    const double error = RelativeError(runner.Gradient(tensor), expected.gradients.at(tensor.name),
                                       /*floor=*/1e-5);
    EXPECT_LT(error, tolerance) << model.name << " " << tensor.name;
  }
}

class DecoderGradient : public ::testing::TestWithParam<std::string> {};

TEST_P(DecoderGradient, LossAndGradientsEqualTheReference) {
  const TinyModel model = MakeTinyModel(GetParam());
  const MicroBatch batch = MakeBatch(model, {{9, 7}, {20}}, 20);
  const double scale = 1.0 / static_cast<double>(batch.num_trained);
  const auto expected =
      reference::RunReference(model.config, model.inventory, model.weights, batch, scale);
  Runner runner(model, Fp32Options());
  const double loss = runner.LossAndGradients(batch, scale);
  EXPECT_NEAR(loss, expected.loss_sum, 1e-5 * expected.loss_sum);
  ExpectGradientsNear(model, runner, expected, 1e-4);
}

TEST_P(DecoderGradient, Bf16WeightsAreReadExactly) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  const MicroBatch batch = MakeBatch(model, {{11, 5}}, 18);
  const double scale = 1.0 / static_cast<double>(batch.num_trained);
  const auto expected =
      reference::RunReference(model.config, model.inventory, model.weights, batch, scale);
  Runner runner(model, Fp32Options(), DType::kBF16);
  const double loss = runner.LossAndGradients(batch, scale);
  EXPECT_NEAR(loss, expected.loss_sum, 1e-5 * expected.loss_sum);
  ExpectGradientsNear(model, runner, expected, 1e-4);
}

TEST_P(DecoderGradient, Bf16ProductsStayNearTheReference) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  const MicroBatch batch = MakeBatch(model, {{16}, {12, 8}}, 20);
  const double scale = 1.0 / static_cast<double>(batch.num_trained);
  const auto expected =
      reference::RunReference(model.config, model.inventory, model.weights, batch, scale);
  DecoderOptions options = Fp32Options();
  options.precision = cpu::Precision::kBf16;
  Runner runner(model, options, DType::kBF16);
  const double loss = runner.LossAndGradients(batch, scale);
  EXPECT_NEAR(loss, expected.loss_sum, 1e-2 * expected.loss_sum);
  for (const TensorSpec& tensor : model.inventory.tensors()) {
    // A key's bias has no gradient without rotation: what rounding leaves is compared with other
    // gradients' size.
    EXPECT_LT(RelativeError(runner.Gradient(tensor), expected.gradients.at(tensor.name), 1e-2),
              0.06)
        << tensor.name;
  }
}

TEST_P(DecoderGradient, GradientsAreAddedToWhatIsThere) {
  const TinyModel model = MakeTinyModel(GetParam());
  const MicroBatch both = MakeBatch(model, {{9, 7}, {20}}, 20);
  const MicroBatch first = MakeBatch(model, {{9, 7}}, 20);
  MicroBatch second = MakeBatch(model, {{20}}, 20);
  // The second row of `both`, alone.
  std::copy(both.tokens.begin() + 20, both.tokens.end(), second.tokens.begin());
  std::copy(both.targets.begin() + 20, both.targets.end(), second.targets.begin());
  const double scale = 1.0 / static_cast<double>(both.num_trained);

  Runner whole(model, Fp32Options());
  Runner halves(model, Fp32Options());
  const double loss = whole.LossAndGradients(both, scale);
  double loss_of_halves = halves.LossAndGradients(first, scale);
  const auto there = halves.gradients();
  loss_of_halves += halves.LossAndGradients(second, scale);
  EXPECT_NEAR(loss, loss_of_halves, 1e-6 * loss);

  Runner added(model, Fp32Options());
  added.LossAndGradients(second, scale);
  for (size_t layer = 0; layer < there.size(); ++layer) {
    std::vector<double> sum(there[layer].begin(), there[layer].end());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added.gradients()[layer][i];
    EXPECT_LT(RelativeError(halves.gradients()[layer], sum, 1e-2), 1e-6) << layer;
  }
  // And it is what one pass over both finds. Either is rounded, in other places: the reference says
  // how much.
  const auto expected =
      reference::RunReference(model.config, model.inventory, model.weights, both, scale);
  for (const TensorSpec& tensor : model.inventory.tensors()) {
    const std::vector<double>& exact = expected.gradients.at(tensor.name);
    const double error = RelativeError(whole.Gradient(tensor), exact, 1e-2);
    EXPECT_LT(RelativeError(halves.Gradient(tensor), exact, 1e-2), error + 1e-6) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderGradient, ::testing::ValuesIn(TinyModelNames()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace forebay::testing
