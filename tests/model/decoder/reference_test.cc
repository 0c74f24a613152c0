// The yardstick itself: its gradients are the slopes of its loss.
#include <cmath>

#include "fmt/format.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

class ReferenceDecoder : public ::testing::TestWithParam<std::string> {};

TEST_P(ReferenceDecoder, GradientsAreTheSlopesOfTheLoss) {
  TinyModel model = MakeTinyModel(GetParam());
  const MicroBatch batch = MakeBatch(model, {{7, 4}}, 12);
  const auto result =
      reference::RunReference(model.config, model.inventory, model.weights, batch, 1.0);
  const double step = 1e-5;
  for (const TensorSpec& tensor : model.inventory.tensors()) {
    // The middle element; of an embedding, one whose token occurs.
    int64_t element = tensor.num_elems / 2;
    if (tensor.role == static_cast<int>(TensorRole::kTokenEmbedding)) {
      element = batch.tokens[3] * model.config.hidden_size + 5;
    }
    if (tensor.role == static_cast<int>(TensorRole::kPositionEmbedding)) {
      element = 2 * model.config.hidden_size + 5;
    }
    // Without rotation a key's bias moves all scores of a query alike, which softmax ignores: one
    // of a value.
    if (tensor.role == static_cast<int>(TensorRole::kQkvBias)) element = tensor.num_elems - 1;
    double& weight = model.weights[tensor.name][element];
    const double original = weight;
    const auto loss_at = [&](double value) {
      weight = value;
      return reference::RunReference(model.config, model.inventory, model.weights, batch, 1.0)
          .loss_sum;
    };
    const double slope = (loss_at(original + step) - loss_at(original - step)) / (2 * step);
    weight = original;
    const double gradient = result.gradients.at(tensor.name)[element];
    EXPECT_NEAR(gradient, slope, 1e-6 * (1 + std::abs(slope))) << tensor.name;
    EXPECT_NE(gradient, 0) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceDecoder, ::testing::ValuesIn(TinyModelNames()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace forebay::testing
