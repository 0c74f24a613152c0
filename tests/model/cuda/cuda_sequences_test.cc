// Sequences on a GPU beside those on the CPU.
#include "forebay/model/cuda_decoder/cuda_sequences.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/step/gpu_window.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<std::vector<int32_t>>;  // by sequence

constexpr int64_t kPassTokens = 16;
const std::vector<int64_t> kMaxLengths = {30, 40, 12};

TokensOfSequences SpansOf(const Tokens& tokens, std::vector<std::span<const int32_t>>& spans) {
  spans.assign(tokens.begin(), tokens.end());
  return spans;
}

class CudaSequencesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
  }

  // Ended from the last to the first.
  struct OnGpu {
    OnGpu(const TinyModel& model, DType dtype, Device* device, int num_cached_in_ram = 0)
        : source(model.inventory, model.weights, dtype) {
      auto made = CreateCudaSequences(model.config, OptionsOf(dtype, num_cached_in_ram), device,
                                      &device_budget, &host_budget);
      FOREBAY_CHECK(made.ok());
      sequences = *std::move(made);
      auto window_made = GpuWindow::Create(&source, device, PlacesOfChain(model.inventory, dtype));
      FOREBAY_CHECK(window_made.ok());
      window = *std::move(window_made);
    }
    MemoryBudget device_budget{0}, host_budget{0};
    MemorySource source;
    std::unique_ptr<Sequences> sequences;
    std::unique_ptr<GpuWindow> window;
  };
  static CudaSequencesOptions OptionsOf(DType dtype, int num_cached_in_ram = 0) {
    return {.dtype = dtype,
            .max_tokens = kPassTokens,
            .max_lengths = kMaxLengths,
            .num_cached_in_ram = num_cached_in_ram};
  }

  // Logits of all sequences; NAN in the rows of those that got no token.
  static std::vector<float> Extend(Sequences& sequences, ParamSource& source,
                                   const Tokens& tokens) {
    std::vector<float> logits(tokens.size() * sequences.config().vocab_size, NAN);
    std::vector<std::span<const int32_t>> spans;
    const absl::Status status = sequences.Extend(source, SpansOf(tokens, spans), logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }

  // Prompts of which the second needs passes of its own, and the third comes later; then the
  // likeliest tokens of the CPU, one after another, until the third sequence is full.
  void ExpectAsOnTheCpu(DType dtype, double tolerance, bool same_choice) {
    const TinyModel model = MakeTinyModel(GetParam(), dtype);
    Runner cpu(model, {2, cpu::Precision::kFp32, kPassTokens, /*training=*/false});
    const auto on_cpu = *CreateCpuSequences(&cpu.decoder(), kMaxLengths, &cpu.budget());
    OnGpu gpu(model, dtype, device_.get());
    const auto vocab = static_cast<size_t>(model.config.vocab_size);
    Tokens next = {
        MakeBatch(model, {{5}}, 5, 2).tokens, MakeBatch(model, {{23}}, 23, 3).tokens, {}};
    for (int round = 0; round < 9; ++round) {
      const std::vector<float> expected = Extend(*on_cpu, cpu.source(), next);
      const std::vector<float> logits = Extend(*gpu.sequences, *gpu.window, next);
      for (size_t sequence = 0; sequence < next.size(); ++sequence) {
        EXPECT_EQ(gpu.sequences->length(sequence), on_cpu->length(sequence));
        const auto of_cpu = std::span(expected).subspan(sequence * vocab, vocab);
        const auto of_gpu = std::span(logits).subspan(sequence * vocab, vocab);
        if (next[sequence].empty()) {
          EXPECT_TRUE(std::isnan(of_gpu[0]) && std::isnan(of_cpu[0]));
        } else {
          for (size_t i = 0; i < vocab; ++i) ASSERT_NEAR(of_gpu[i], of_cpu[i], tolerance) << round;
          const auto choice = std::ranges::max_element(of_cpu) - of_cpu.begin();
          if (same_choice) {
            EXPECT_EQ(std::ranges::max_element(of_gpu) - of_gpu.begin(), choice);
          }
          next[sequence] = {static_cast<int32_t>(choice)};
        }
      }
      if (round == 1) next[2] = MakeBatch(model, {{6}}, 6, 4).tokens;
    }
  }

  std::unique_ptr<Device> device_;
};

TEST_P(CudaSequencesTest, TokensInFp32AreThoseOfTheCpu) {
  ExpectAsOnTheCpu(DType::kF32, 2e-5, /*same_choice=*/true);
}

TEST_P(CudaSequencesTest, LogitsInBf16AreNearThoseOfTheCpu) {
  ExpectAsOnTheCpu(DType::kBF16, 0.12, /*same_choice=*/false);
}

TEST_P(CudaSequencesTest, TakesTheMemoryThatAPlanCounts) {
  const TinyModel model = MakeTinyModel(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (int in_ram = 0; in_ram <= model.config.num_layers; ++in_ram) {
      const CudaSequencesOptions options = OptionsOf(dtype, in_ram);
      MemoryBudget device_budget(0), host_budget(0);
      const auto sequences =
          *CreateCudaSequences(model.config, options, device_.get(), &device_budget, &host_budget);
      const CudaSequencesMemory memory = CudaSequencesMemoryFor(model.config, options);
      EXPECT_EQ(device_budget.used_bytes(),
                memory.workspace_bytes + memory.cache_bytes + memory.token_bytes);
      EXPECT_LE(host_budget.used_bytes(), CudaSequencesHostBytes(model.config, options));
    }
  }
}

TEST_P(CudaSequencesTest, KeysInRamChangeNoBit) {
  const TinyModel model = MakeTinyModel(GetParam(), DType::kBF16);
  // Prompts, one of them in two passes, and tokens one by one.
  const auto logits_with = [&](int num_cached_in_ram) {
    OnGpu gpu(model, DType::kBF16, device_.get(), num_cached_in_ram);
    Tokens next = {
        MakeBatch(model, {{5}}, 5, 2).tokens, MakeBatch(model, {{23}}, 23, 3).tokens, {}};
    std::vector<uint32_t> bits;
    for (int32_t round = 0; round < 4; ++round) {
      for (const float logit : Extend(*gpu.sequences, *gpu.window, next)) {
        bits.push_back(std::bit_cast<uint32_t>(logit));
      }
      next = {{round}, {3}, {round + 1}};
    }
    return bits;
  };
  const std::vector<uint32_t> expected = logits_with(0);
  for (int in_ram = 1; in_ram <= model.config.num_layers; ++in_ram) {
    EXPECT_TRUE(logits_with(in_ram) == expected) << in_ram;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaSequencesTest, ::testing::ValuesIn(TinyModelNames()),
                         [](const auto& test) { return test.param; });

class CudaSequencesErrors : public CudaSequencesTest {};
INSTANTIATE_TEST_SUITE_P(OneModel, CudaSequencesErrors, ::testing::Values("LlamaGroupedTied"));

TEST_P(CudaSequencesErrors, WhatFailsLeavesTheSequencesAsTheyWere) {
  const TinyModel model = MakeTinyModel(GetParam());
  OnGpu gpu(model, DType::kF32, device_.get());
  const auto vocab = model.config.vocab_size;
  const Tokens prompts = {MakeBatch(model, {{5}}, 5).tokens, MakeBatch(model, {{30}}, 30).tokens,
                          MakeBatch(model, {{9}}, 9).tokens};
  std::vector<float> logits(3 * vocab);
  std::vector<std::span<const int32_t>> spans;
  const auto extend = [&](const Tokens& tokens) {
    return gpu.sequences->Extend(*gpu.window, SpansOf(tokens, spans), logits);
  };
  ASSERT_TRUE(extend(prompts).ok());
  const std::vector<float> expected = Extend(*gpu.sequences, *gpu.window, {{1}, {2}, {3}});

  OnGpu other(model, DType::kF32, device_.get());
  ASSERT_TRUE(other.sequences->Extend(*other.window, SpansOf(prompts, spans), logits).ok());
  const Tokens too_long = {{1}, {2}, {1, 2, 3, 4}};
  absl::Status status = other.sequences->Extend(*other.window, SpansOf(too_long, spans), logits);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("4 tokens do not fit behind the 9"));
  const Tokens unknown = {{1}, {static_cast<int32_t>(vocab)}, {}};
  status = other.sequences->Extend(*other.window, SpansOf(unknown, spans), logits);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_EQ(other.sequences->length(0), 5);
  EXPECT_EQ(other.sequences->length(1), 30);
  EXPECT_EQ(Extend(*other.sequences, *other.window, {{1}, {2}, {3}}), expected);
  other.source.FailAfter(1);
  status = other.sequences->Extend(*other.window, SpansOf({{1}, {}, {}}, spans), logits);
  EXPECT_THAT(MessageOf(status), HasSubstr("told to fail"));
  EXPECT_EQ(other.sequences->length(0), 6);
}

TEST_P(CudaSequencesErrors, LongerThanTheModelsPositionsIsRefused) {
  const TinyModel model = MakeTinyModel(GetParam());
  MemoryBudget budget(0);
  CudaSequencesOptions options = OptionsOf(DType::kF32);
  options.max_lengths = {3, 65};
  const auto made =
      CreateCudaSequences(model.config, options, device_.get(), &budget, &budget).status();
  EXPECT_EQ(ExitCodeOf(made), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(made), HasSubstr("65 positions, but the model has 64"));
}

}  // namespace
}  // namespace forebay::testing
