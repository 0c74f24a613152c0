// Gradients that lie on a GPU: rounded there to the reference's bits, and mistakes with them. That
// all ways to update give the same with them is in tensor_updates_test.cc.
#include "forebay/optimizer/gradient_landing.h"

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class GradientLandingTest : public testing::Test {
 protected:
  void SetUp() override {
    auto cuda = CreateCudaDevice(0);
    if (!cuda.ok()) GTEST_SKIP() << MessageOf(cuda.status());
    device_ = *std::move(cuda);
  }
  std::unique_ptr<OffloadedRun> Start(OffloadedRun::Options options) {
    options.gradient_device = device_.get();
    auto run = OffloadedRun::Start(options, folder_.path());
    FOREBAY_CHECK(run.ok());
    return *std::move(run);
  }

  const TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
};

// Of all sizes, and in the first block what has bits of its own in some type.
std::vector<float> GradientWithOddValues(int64_t num_blocks, uint64_t seed) {
  const CounterRng rng(seed);
  std::vector<float> gradient(static_cast<size_t>(num_blocks * kNormBlockElems));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] =
        static_cast<float>(rng.Normal(i) * std::pow(10.0, static_cast<double>(i % 50) - 45));
  }
  const float odd[] = {0.0f,   -0.0f,        65519.0f,   65520.0f,   -3e38f,      3.4e38f,
                       1e-45f, 0x1.01p-126f, 0x1.008p0f, 0x1.018p0f, 0x1.0081p0f, 6e-8f};
  std::ranges::copy(odd, gradient.begin() + 5);
  return gradient;
}

class RoundingOnAGpu : public GradientLandingTest, public testing::WithParamInterface<DType> {
 protected:
  // Brings the gradients to RAM, two on their way at a time, and compares.
  void ExpectTheBitsOfTheReference(const std::vector<std::vector<float>>& gradients) {
    constexpr int64_t kMostElems = 20 * kNormBlockElems;
    MemoryBudget device_budget(0), budget(0);
    auto landing =
        GradientLanding::Create(device_.get(), GetParam(), kMostElems, &device_budget, &budget);
    ASSERT_TRUE(landing.ok()) << landing.status();
    EXPECT_EQ(device_budget.used_bytes(), GradientLanding::DeviceBytes(GetParam(), kMostElems));
    EXPECT_EQ(budget.used_bytes(), GradientLanding::ChargedBytes(GetParam(), kMostElems));
    const auto memory = device_->Allocate(kMostElems * 4);
    const auto ready = device_->CreateEvent(), taken = device_->CreateEvent();
    const auto stream = device_->CreateStream();
    ASSERT_TRUE(memory.ok() && ready.ok() && taken.ok() && stream.ok());
    for (size_t i = 0; i < gradients.size(); ++i) {
      const std::vector<float>& gradient = gradients[i];
      ASSERT_TRUE((*stream)->WaitFor(**taken).ok());
      ASSERT_TRUE(
          (*stream)->CopyToDevice(memory->address(), std::as_bytes(std::span(gradient))).ok());
      ASSERT_TRUE((*stream)->Record(**ready).ok());
      const LayerGradient handed = {
          .layer = 0,
          .bytes = std::as_bytes(std::span<const float>(memory->As<float>(), gradient.size())),
          .device = DeviceKind::kCuda,
          .ready = ready->get(),
          .taken = taken->get()};
      ASSERT_TRUE((*landing)->Start(handed).ok());
      if (i > 0) ExpectLands(**landing, gradients[i - 1]);
    }
    ExpectLands(**landing, gradients.back());
    EXPECT_FALSE((*landing)->AnyIsOnItsWay());
  }
  static void ExpectLands(GradientLanding& landing, const std::vector<float>& gradient) {
    const auto rounded = landing.Land();
    ASSERT_TRUE(rounded.ok()) << rounded.status();
    std::vector<std::byte> expected(gradient.size() * static_cast<size_t>(SizeOf(GetParam())));
    std::vector<double> squares;
    for (size_t i = 0; i < gradient.size(); i += kNormBlockElems) {
      squares.push_back(
          RoundAndSumSquaresRef(gradient.data() + i, kNormBlockElems, GetParam(),
                                expected.data() + i * static_cast<size_t>(SizeOf(GetParam()))));
    }
    EXPECT_TRUE(std::ranges::equal(rounded->bytes, expected));
    ASSERT_EQ(rounded->block_squares.size(), squares.size());
    for (size_t i = 0; i < squares.size(); ++i) {
      const double sum = rounded->block_squares[i];
      EXPECT_EQ(std::bit_cast<uint64_t>(sum), std::bit_cast<uint64_t>(squares[i])) << i;
    }
  }
};

TEST_P(RoundingOnAGpu, GivesTheBitsOfTheReference) {
  std::vector<std::vector<float>> gradients;
  for (const int64_t num_blocks : {1, 2, 16, 17, 20}) {  // a block of threads has 16
    gradients.push_back(
        GradientWithOddValues(num_blocks, /*seed=*/static_cast<uint64_t>(num_blocks)));
  }
  ExpectTheBitsOfTheReference(gradients);
}

TEST_P(RoundingOnAGpu, KeepsWhatIsNoNumber) {
  std::vector<float> gradient = GradientWithOddValues(2, /*seed=*/3);
  gradient[7] = std::bit_cast<float>(0xffc12345u);
  gradient[8] = std::numeric_limits<float>::infinity();
  gradient[9] = -std::numeric_limits<float>::infinity();
  MemoryBudget device_budget(0), budget(0);
  auto landing = GradientLanding::Create(device_.get(), GetParam(), std::ssize(gradient),
                                         &device_budget, &budget);
  const auto memory = device_->Allocate(std::ssize(gradient) * 4);
  const auto stream = device_->CreateStream();
  ASSERT_TRUE(landing.ok() && memory.ok() && stream.ok());
  ASSERT_TRUE((*stream)->CopyToDevice(memory->address(), std::as_bytes(std::span(gradient))).ok());
  ASSERT_TRUE((*stream)->Await().ok());
  LayerGradient handed = Fp32Gradient(0, {memory->As<float>(), gradient.size()});
  handed.device = DeviceKind::kCuda;
  ASSERT_TRUE((*landing)->Start(handed).ok());
  const auto rounded = (*landing)->Land();
  ASSERT_TRUE(rounded.ok()) << rounded.status();
  std::vector<std::byte> expected(rounded->bytes.size());
  RoundAndSumSquaresRef(gradient.data(), std::ssize(gradient), GetParam(), expected.data());
  EXPECT_TRUE(std::ranges::equal(rounded->bytes, expected));
  EXPECT_FALSE(std::isfinite(rounded->block_squares[0]));
  EXPECT_TRUE(std::isfinite(rounded->block_squares[1]) || GetParam() == DType::kF16);
}

INSTANTIATE_TEST_SUITE_P(DTypes, RoundingOnAGpu,
                         testing::Values(DType::kBF16, DType::kF16, DType::kF32),
                         [](const testing::TestParamInfo<DType>& dtype) {
                           return std::string(NameOf(dtype.param));
                         });

TEST_F(GradientLandingTest, MistakesChangeNothing) {
  const auto run = Start({.gradients = Tiers::kMixed});
  const Inventory& inventory = run->store().inventory();
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  ASSERT_TRUE(run->Hand(3, 1).ok());
  const auto misuse = [](const absl::Status& status, const char* message) {
    EXPECT_THAT(MessageOf(status), HasSubstr(message));
  };
  misuse(run->Hand(3, 1), "the gradient of layer 'head' is handed over twice");
  misuse(run->HandOver(2, std::vector<float>(2047)), "with 2047 elements, and the layer has");
  const std::vector<uint16_t> in_bf16(2048);
  const LayerGradient rounded = {.layer = 2,
                                 .bytes = std::as_bytes(std::span(in_bf16)),
                                 .dtype = DType::kBF16,
                                 .device = DeviceKind::kCuda};
  misuse(run->optimizer().Hand(rounded, run->pool()), "in that (in RAM), or in fp32");
  misuse(run->HandOver(2, GradientOf(inventory, 2, 1), std::vector{9}), "tensor 9 is said to be");
  misuse(run->optimizer().FinishBackward().status(), "no gradient of layer 'embed' was");
  for (const int layer : {2, 1, 0}) ASSERT_TRUE(run->Hand(layer, 1).ok());
  const auto stats = run->optimizer().FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->norm, expected.Step(1));
}

TEST_F(GradientLandingTest, PaddingThatIsNotZeroIsAnErrorOfTheNextCall) {
  const auto run = Start({});
  std::vector<float> gradient = GradientOf(run->store().inventory(), 2, 1);
  gradient.back() = 1;
  ASSERT_TRUE(run->HandOver(2, gradient).ok());
  EXPECT_THAT(MessageOf(run->Hand(1, 1)), HasSubstr("'layers.1' has 1 at element"));
}

TEST_F(GradientLandingTest, AStepThatIsAbandonedLeavesNothingOnItsWay) {
  const auto run = Start({.gradients = Tiers::kMixed});
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  for (const int layer : {3, 2}) ASSERT_TRUE(run->Hand(layer, 7).ok());
  run->optimizer().AbandonStep();
  const auto norm = run->Step(1);
  ASSERT_TRUE(norm.ok()) << norm.status();
  EXPECT_EQ(*norm, expected.Step(1));
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(GradientLandingTest, LessMemoryIsTakenForAGradientThatComesInParts) {
  int64_t whole_bytes = 0;
  {
    const auto run = Start({});
    whole_bytes = run->budget().used_bytes();
    EXPECT_EQ(
        run->device_budget().used_bytes(),
        GradientLanding::DeviceBytes(DType::kBF16, run->store().inventory().largest_layer_elems()));
  }
  const auto in_parts = Start({.landing_elems = kNormBlockElems});
  EXPECT_EQ(in_parts->device_budget().used_bytes(),
            GradientLanding::DeviceBytes(DType::kBF16, kNormBlockElems));
  EXPECT_LT(in_parts->budget().used_bytes(), whole_bytes);
}

TEST_F(GradientLandingTest, AStepThatIsAbandonedAmongPartsLeavesNothingOnItsWay) {
  const auto run = Start({.gradients = Tiers::kMixed, .landing_elems = kNormBlockElems});
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  const Inventory& inventory = run->store().inventory();
  ASSERT_TRUE(run->Hand(3, 7).ok());
  // The last tensor's padding ends the layer: parts before it are taken.
  std::vector<float> gradient = GradientOf(inventory, 2, 7);
  gradient.back() = 1;
  const absl::Status handed = run->HandOver(2, gradient);
  EXPECT_THAT(MessageOf(handed.ok() ? run->Hand(1, 7) : handed),
              HasSubstr("'layers.1' has 1 at element"));
  run->optimizer().AbandonStep();
  const auto norm = run->Step(1);
  ASSERT_TRUE(norm.ok()) << norm.status();
  EXPECT_EQ(*norm, expected.Step(1));
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(GradientLandingTest, WhatIsHandedOverInPartsIsHeldAsTheWhole) {
  // Parts that come in one piece, and in several of which the last is shorter.
  for (const auto& [landing_elems, part_elems] :
       {std::pair(int64_t{0}, 2 * kNormBlockElems), std::pair(kNormBlockElems, kNormBlockElems),
        std::pair(2 * kNormBlockElems, 3 * kNormBlockElems)}) {
    SCOPED_TRACE(part_elems);
    const TemporaryFolder folder;
    OffloadedRun::Options options = {.gradients = Tiers::kMixed,
                                     .gradient_device = device_.get(),
                                     .landing_elems = landing_elems,
                                     .part_elems = part_elems};
    auto run = OffloadedRun::Start(options, folder.path());
    ASSERT_TRUE(run.ok()) << run.status();
    InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
    for (int64_t step = 1; step <= 3; ++step) {
      if (step == 2) {  // abandoned among parts
        ASSERT_TRUE((*run)->Hand(3, 9).ok());
        std::vector<float> some = GradientOf((*run)->store().inventory(), 2, 9);
        some.resize(kNormBlockElems);
        ASSERT_TRUE((*run)->HandOver(2, some).ok());
        (*run)->optimizer().AbandonStep();
      }
      const auto norm = (*run)->Step(step);
      ASSERT_TRUE(norm.ok()) << norm.status();
      EXPECT_EQ(*norm, expected.Step(step));
    }
    ExpectStoreHolds((*run)->store(), expected);
  }
}

TEST(GradientLandingPartElems, AreThoseOfMostLayersOrOfAnEighthOfAGibibyte) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  EXPECT_EQ(GradientLanding::PartElems({}), 0);
  EXPECT_EQ(GradientLanding::PartElems({1024, 4096, 2048}), 4096);
  EXPECT_EQ(GradientLanding::PartElems({9 * kLeast, 1024, 2048, 1024, 5 * kLeast}), kLeast);
  EXPECT_EQ(
      GradientLanding::PartElems({9 * kLeast, 3 * kLeast, 3 * kLeast, 9 * kLeast, 3 * kLeast}),
      3 * kLeast);
}

TEST_F(GradientLandingTest, AGradientInRamMayFollowOneOfTheGpu) {
  const auto run = Start({.gradients = Tiers::kMixed});
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  ASSERT_TRUE(run->Hand(3, 1).ok());
  const std::vector<float> in_ram = GradientOf(run->store().inventory(), 2, 1);
  ASSERT_TRUE(run->optimizer().Hand(Fp32Gradient(2, in_ram), run->pool()).ok());
  for (const int layer : {1, 0}) ASSERT_TRUE(run->Hand(layer, 1).ok());
  const auto stats = run->optimizer().FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->norm, expected.Step(1));
}

// A gradient in RAM may be on its way there still.
TEST_F(GradientLandingTest, AGradientInRamMayHaveAnEventToo) {
  const auto run = Start({});
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  const Inventory& inventory = run->store().inventory();
  const auto stream = device_->CreateStream();
  const auto ready = device_->CreateEvent();
  const auto memory = device_->Allocate(inventory.largest_layer_elems() * 4);
  ASSERT_TRUE(stream.ok() && ready.ok() && memory.ok());
  for (int layer = run->num_layers() - 1; layer >= 0; --layer) {
    const std::vector<float> gradient = GradientOf(inventory, layer, 1);
    std::vector<float> copied(gradient.size());
    ASSERT_TRUE(
        (*stream)->CopyToDevice(memory->address(), std::as_bytes(std::span(gradient))).ok());
    ASSERT_TRUE(
        (*stream)->CopyToHost(std::as_writable_bytes(std::span(copied)), memory->address()).ok());
    ASSERT_TRUE((*stream)->Record(**ready).ok());
    LayerGradient handed = Fp32Gradient(layer, copied);
    handed.ready = ready->get();
    ASSERT_TRUE(run->optimizer().Hand(handed, run->pool()).ok());
  }
  const auto stats = run->optimizer().FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->norm, expected.Step(1));
}

}  // namespace
}  // namespace forebay
