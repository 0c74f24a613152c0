// The decoder on a GPU under the walk over its layers, weights coming through the window on the
// GPU, beside the decoder on the CPU.
#include "forebay/model/cuda_decoder/cuda_decoder.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/step/gpu_window.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

constexpr double kScale = 0.05;
constexpr int64_t kMostTokens = 48;                 // of a micro-batch
constexpr int64_t kStepTokens = 128;                // of a pass
using Gradients = std::vector<std::vector<float>>;  // by layer

double DistanceOf(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    of_b += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(squares / std::max(of_b, 1e-30));
}

class CudaDecoderTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
  }

  static std::vector<MicroBatch> BatchesOf(const TinyModel& model) {
    return {MakeBatch(model, {{30, 9}}, 40, 3), MakeBatch(model, {{5, 17}, {11}}, 24, 4),
            MakeBatch(model, {{40}}, 40, 5)};
  }

  // The decoder with what it needs. Ended from the last to the first.
  struct OnGpu {
    OnGpu(const TinyModel& model, DType dtype, Device* device, bool training = true,
          int segment_layers = 1, bool shares_gradients = false, bool vocabulary_in_parts = false)
        : num_layers(model.inventory.num_layers()),
          layers(model.inventory.layers()),
          source(model.inventory, model.weights, dtype) {
      auto made = CreateCudaDecoder(model.config,
                                    {.dtype = dtype,
                                     .max_tokens = kMostTokens,
                                     .step_tokens = kStepTokens,
                                     .num_batches = 3,
                                     .segment_layers = segment_layers,
                                     .shares_gradients = shares_gradients,
                                     .vocabulary_in_parts = vocabulary_in_parts,
                                     .training = training},
                                    device, &device_budget, &host_budget);
      FOREBAY_CHECK(made.ok());
      decoder = *std::move(made);
      auto window_made = GpuWindow::Create(&source, device, PlacesOfChain(model.inventory, dtype));
      FOREBAY_CHECK(window_made.ok());
      window = *std::move(window_made);
    }
    int num_layers;
    std::vector<LayerSpec> layers;
    MemoryBudget device_budget{0}, host_budget{0};
    MemorySource source;
    std::unique_ptr<CudaDecoder> decoder;
    std::unique_ptr<GpuWindow> window;
  };

  // `late`: gradients are taken when all other work that was asked for is done, where nothing
  // makes that wait for them.
  Gradients Run(OnGpu& gpu, const std::vector<Operation>& operations,
                std::span<const MicroBatch> batches, bool late = false) {
    Gradients gradients(static_cast<size_t>(64));
    const auto stream = *device_->CreateStream();
    WalkHooks hooks;
    hooks.hand = [&](const LayerGradient& gradient) -> absl::Status {
      std::vector<float>& to = gradients[gradient.layer];
      EXPECT_EQ(gradient.first_elem, std::ssize(to));
      const int64_t num_elems = gpu.layers[gradient.layer].num_elems;
      to.reserve(static_cast<size_t>(num_elems));  // a part before may be on its way to it
      to.resize(static_cast<size_t>(gradient.end_elem()));
      FOREBAY_RETURN_IF_ERROR(stream->WaitFor(*gradient.ready));
      FOREBAY_RETURN_IF_ERROR(
          stream->CopyToHost(std::as_writable_bytes(std::span(to).subspan(gradient.first_elem)),
                             gradient.bytes.data()));
      const bool is_part = gradient.num_elems() < num_elems;
      num_parts_ += is_part ? 1 : 0;
      // Memory that the next part is made in before this one is taken shows.
      return late || is_part ? stream->Record(*gradient.taken) : stream->Await();
    };
    LayerWalk walk(operations);
    EXPECT_TRUE(gpu.decoder->BeginPass(batches, kScale).ok());
    walk.Announce(*gpu.window);
    const absl::Status status = walk.Run(*gpu.window, *gpu.decoder, hooks);
    EXPECT_TRUE(status.ok()) << status;
    for (int layer = 0; late && layer < gpu.num_layers; ++layer) {
      EXPECT_TRUE(gpu.decoder->WeightsAreUsed(layer)->Await().ok());
    }
    EXPECT_TRUE(stream->Await().ok());
    return gradients;
  }

  static std::vector<double> Losses(OnGpu& gpu, size_t num_batches) {
    std::vector<double> losses;
    for (size_t i = 0; i < num_batches; ++i) losses.push_back(*gpu.decoder->LossSumOf(i));
    return losses;
  }

  // A step of several micro-batches on the GPU against the CPU in fp32 with the same weights.
  void ExpectAsOnTheCpu(DType dtype, double loss_tolerance, double gradient_tolerance) {
    const TinyModel model = MakeTinyModel(GetParam(), dtype);
    const std::vector<MicroBatch> batches = BatchesOf(model);
    Runner cpu(model, {.num_threads = 1, .precision = cpu::Precision::kFp32, .max_tokens = 64});
    OnGpu gpu(model, dtype, device_.get());
    const Gradients gradients = Run(gpu, ChainSchedule(ChainOf(model.config)).operations, batches);
    const std::vector<double> losses = Losses(gpu, batches.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      const double expected = cpu.LossAndGradients(batches[i], kScale);
      EXPECT_NEAR(losses[i], expected, loss_tolerance * expected) << i;
    }
    for (int layer = 0; layer < model.inventory.num_layers(); ++layer) {
      const std::vector<float>& expected = cpu.gradients()[layer];
      ASSERT_EQ(gradients[layer].size(), expected.size()) << layer;
      EXPECT_LT(DistanceOf(gradients[layer], expected), gradient_tolerance) << layer;
    }
  }

  std::unique_ptr<Device> device_;
  int num_parts_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Models, CudaDecoderTest, ::testing::ValuesIn(TinyModelNames()));

TEST_P(CudaDecoderTest, AStepInFp32IsThatOfTheCpu) {
  ExpectAsOnTheCpu(DType::kF32, 1e-6, 2e-5);
}

TEST_P(CudaDecoderTest, AStepInBf16IsNearIt) {
  ExpectAsOnTheCpu(DType::kBF16, 5e-3, 3e-2);
}

TEST_P(CudaDecoderTest, AStepInFp16IsNearIt) {
  ExpectAsOnTheCpu(DType::kF16, 1e-3, 1e-2);
}

TEST_P(CudaDecoderTest, AStepGivesTheSameBitsBehindOthersAndWhenItsGradientsAreTakenLate) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  const std::vector<MicroBatch> batches = BatchesOf(model);
  const std::vector<Operation> step = ChainSchedule(ChainOf(model.config)).operations;
  const std::vector<Operation> evaluation = ForwardOperations(ChainOf(model.config));
  OnGpu gpu(model, DType::kBF16, device_.get());
  const Gradients first = Run(gpu, step, batches);
  const std::vector<double> losses = Losses(gpu, batches.size());
  Run(gpu, step, std::span(batches).first(1));
  Run(gpu, evaluation, batches);
  EXPECT_EQ(Losses(gpu, batches.size()), losses);
  EXPECT_EQ(Run(gpu, step, batches, /*late=*/true), first);
  EXPECT_EQ(Losses(gpu, batches.size()), losses);

  OnGpu forward_only(model, DType::kBF16, device_.get(), /*training=*/false);
  Run(forward_only, evaluation, batches);
  EXPECT_EQ(Losses(forward_only, batches.size()), losses);
}

TEST_P(CudaDecoderTest, AStepInSegmentsGivesTheSameBits) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  const std::vector<MicroBatch> batches = BatchesOf(model);
  OnGpu whole(model, DType::kBF16, device_.get());
  const Gradients expected = Run(whole, ChainSchedule(ChainOf(model.config)).operations, batches);
  for (int segment = 2; segment <= model.config.num_layers; ++segment) {
    OnGpu gpu(model, DType::kBF16, device_.get(), /*training=*/true, segment);
    const Chain chain = ChainOf(model.config, {.segment_blocks = segment});
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(Run(gpu, ChainSchedule(chain).operations, batches), expected) << segment;
      EXPECT_EQ(Losses(gpu, batches.size()), Losses(whole, batches.size())) << segment;
    }
  }
}

TEST_P(CudaDecoderTest, AStepWhoseLayersShareGradientMemoryGivesTheSameBits) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  if (model.config.tied_embeddings) GTEST_SKIP() << "tied embeddings do not share it";
  const std::vector<MicroBatch> batches = BatchesOf(model);
  const std::vector<Operation> step = ChainSchedule(ChainOf(model.config)).operations;
  OnGpu own(model, DType::kBF16, device_.get());
  OnGpu shared(model, DType::kBF16, device_.get(), /*training=*/true, /*segment_layers=*/1,
               /*shares_gradients=*/true);
  EXPECT_LT(shared.device_budget.used_bytes(), own.device_budget.used_bytes());
  const Gradients expected = Run(own, step, batches);
  for (const bool late : {false, true}) {
    EXPECT_EQ(Run(shared, step, batches, late), expected) << late;
    EXPECT_EQ(Losses(shared, batches.size()), Losses(own, batches.size())) << late;
  }
}

using LargeVocabularyOnGpu = CudaDecoderTest;
INSTANTIATE_TEST_SUITE_P(Kinds, LargeVocabularyOnGpu,
                         ::testing::Values("TiedBf16", "UntiedBf16", "TiedFp32", "UntiedFp32"));

TEST_P(LargeVocabularyOnGpu, ItsGradientsInPartsTakeLessMemoryAndHaveTheSameBits) {
  const bool tied = GetParam().starts_with("Tied");
  const DType dtype = GetParam().ends_with("Bf16") ? DType::kBF16 : DType::kF32;
  const TinyModel model = MakeLargeVocabularyModel(tied, dtype);
  const std::vector<MicroBatch> batches = {MakeBatch(model, {{14}}, 16, 3),
                                           MakeBatch(model, {{3, 5}}, 8, 4)};
  const BlockRecompute recompute = {.vocabulary_in_parts = true};
  OnGpu whole(model, dtype, device_.get());
  const Gradients expected = Run(whole, ChainSchedule(ChainOf(model.config)).operations, batches);
  EXPECT_EQ(num_parts_, 0);
  OnGpu in_parts(model, dtype, device_.get(), /*training=*/true, /*segment_layers=*/1,
                 /*shares_gradients=*/false, /*vocabulary_in_parts=*/true);
  const CudaDecoderMemory memory =
      CudaDecoderMemoryFor(model.config, {.dtype = dtype,
                                          .max_tokens = kMostTokens,
                                          .step_tokens = kStepTokens,
                                          .num_batches = 3,
                                          .vocabulary_in_parts = true});
  EXPECT_EQ(in_parts.device_budget.used_bytes(), memory.total());
  constexpr int64_t kTableBytes = 65541 * 16 * 4;
  EXPECT_LT(memory.total(), whole.device_budget.used_bytes() - kTableBytes / 2);
  const std::vector<Operation> step = ChainSchedule(ChainOf(model.config, recompute)).operations;
  for (int repeat = 0; repeat < 2; ++repeat) {
    num_parts_ = 0;
    EXPECT_EQ(Run(in_parts, step, batches), expected);
    EXPECT_EQ(Losses(in_parts, batches.size()), Losses(whole, batches.size()));
    EXPECT_EQ(num_parts_, tied ? 5 : 5 + 1 + 5);
  }
}

TEST_P(CudaDecoderTest, TakesTheMemoryThatThePlannerCounts) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  for (const bool training : {true, false}) {
    for (const int segment : {1, 2}) {
      const OnGpu gpu(model, DType::kBF16, device_.get(), training, segment);
      const CudaDecoderMemory memory =
          CudaDecoderMemoryFor(model.config, {.dtype = DType::kBF16,
                                              .max_tokens = kMostTokens,
                                              .step_tokens = kStepTokens,
                                              .num_batches = 3,
                                              .segment_layers = segment,
                                              .training = training});
      EXPECT_EQ(gpu.device_budget.used_bytes(), memory.total());
    }
  }
}

}  // namespace
}  // namespace forebay::testing
