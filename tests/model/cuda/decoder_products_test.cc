// The matrix products of a training step are those whose algorithms were chosen before it, in every
// family; on the emulated GPU, which counts what was not.
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/device/device.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/options.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/step/gpu_window.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

constexpr int64_t kTokens = 40;

class DecoderProducts : public ::testing::TestWithParam<std::string> {
 protected:
  ~DecoderProducts() override { emulation::TheOptions() = before_; }

  // The loss of a step by `algorithms`.
  double Step(MatmulAlgorithms* algorithms) {
    const auto device = *CreateCudaDevice(0);
    const MicroBatch batch = MakeBatch(model_, {{30, 10}}, kTokens, 3);
    const std::vector<Operation> operations = ChainSchedule(ChainOf(model_.config)).operations;
    MemoryBudget device_budget(0), host_budget(0);
    MemorySource source(model_.inventory, model_.weights, DType::kBF16);
    const auto decoder = *CreateCudaDecoder(
        model_.config, {.dtype = DType::kBF16, .max_tokens = kTokens, .step_tokens = kTokens},
        device.get(), &device_budget, &host_budget, algorithms);
    const auto window = *GpuWindow::Create(&source, device.get(), /*num_places=*/3, LargestLayer());
    WalkHooks hooks;
    hooks.hand = [&](const LayerGradient& gradient) { return gradient.ready->Await(); };
    LayerWalk walk(operations);
    FOREBAY_CHECK(decoder->BeginPass({&batch, 1}, 1).ok());
    walk.Announce(*window);
    FOREBAY_CHECK(walk.Run(*window, *decoder, hooks).ok());
    return *decoder->LossSumOf(0);
  }
  int64_t LargestLayer() const {
    int64_t largest = 0;
    for (const LayerSpec& layer : model_.inventory.layers()) {
      largest = std::max(largest, layer.num_elems * SizeOf(DType::kBF16));
    }
    return largest;
  }
  // In this test.
  int64_t NumGuesses() const { return emulation::CountersNow().num_guesses - guesses_before_; }

  const emulation::Options before_ = emulation::TheOptions();
  const int64_t guesses_before_ = emulation::CountersNow().num_guesses;
  static TinyModel ModelOf(const std::string& name) {
    if (name != "LargeVocabulary") return MakeTinyModel(name, DType::kBF16);
    return MakeLargeVocabularyModel(/*tied=*/true, DType::kBF16);
  }

  const TinyModel model_ = ModelOf(GetParam());
};

std::vector<std::string> ModelNames() {
  std::vector<std::string> names = TinyModelNames();
  names.push_back("LargeVocabulary");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderProducts, ::testing::ValuesIn(ModelNames()));

TEST_P(DecoderProducts, AreAllMeasuredOnceAndKnownFromThenOn) {
  MatmulAlgorithms algorithms;
  Step(&algorithms);
  EXPECT_EQ(NumGuesses(), 0);
  EXPECT_GT(algorithms.chosen.size(), 10u);
  const MatmulAlgorithms chosen = algorithms;
  emulation::TheOptions().fastest_product = 1;
  Step(&algorithms);
  EXPECT_EQ(algorithms, chosen);
  EXPECT_EQ(NumGuesses(), 0);
  Step(nullptr);
  EXPECT_GT(NumGuesses(), 10);
}

TEST_P(DecoderProducts, AreMeasuredAnewForAnotherLibrary) {
  MatmulAlgorithms algorithms;
  Step(&algorithms);
  const MatmulAlgorithms before = algorithms;
  emulation::TheOptions().cublaslt_version = 130100;
  Step(&algorithms);
  EXPECT_EQ(algorithms.library, "13.1.0");
  EXPECT_EQ(algorithms.chosen.size(), before.chosen.size());
  for (const auto& [product, algorithm] : before.chosen) {
    EXPECT_NE(algorithms.chosen.at(product), algorithm);
  }
}

}  // namespace
}  // namespace forebay::testing
