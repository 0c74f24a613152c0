// The choice among algorithms that the emulated library has, which add in different orders.
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/device/emulation/options.h"
#include "forebay/device/gpu_matmul.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using emulation::TheOptions;

constexpr int64_t kSize = 64;

class GpuMatmulTune : public testing::Test {
 protected:
  GpuMatmulTune() {
    const CounterRng rng(1);
    for (int64_t i = 0; i < kSize * kSize; ++i) {
      values_.push_back(static_cast<float>(rng.Normal(i)));
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values_));
    EXPECT_TRUE(stream_->CopyToDevice(operand_.address(), bytes).ok());
    EXPECT_TRUE(stream_->Await().ok());  // a test may end without using the stream
  }
  ~GpuMatmulTune() override { TheOptions() = before_; }

  std::unique_ptr<GpuMatmul> New() { return *GpuMatmul::Create(device_.get()); }
  MatmulProduct Product() const {
    return ProductOf(shape_, operand_.address(), operand_.address(), result_.address(), nullptr);
  }
  CublasLt::Algorithm Tuned(GpuMatmul& matmul, const MatmulProduct& product) {
    const DeviceBuffer memory = *device_->Allocate(GpuMatmul::OperandBytes(product));
    return matmul.Tune(product, memory.As<std::byte>(), *stream_).value();
  }
  std::vector<float> Multiplied(GpuMatmul& matmul) {
    std::vector<float> result(values_.size());
    EXPECT_TRUE(
        matmul.Multiply(shape_, operand_.address(), operand_.address(), result_.address(), *stream_)
            .ok());
    EXPECT_TRUE(
        stream_->CopyToHost(std::as_writable_bytes(std::span(result)), result_.address()).ok());
    EXPECT_TRUE(stream_->Await().ok());
    return result;
  }

  const emulation::Options before_ = TheOptions();
  const MatmulShape shape_ = {
      .m = kSize, .n = kSize, .k = kSize, .inputs = DType::kF32, .output = DType::kF32};
  const std::unique_ptr<Device> device_ = *CreateCudaDevice(0);
  const DeviceBuffer operand_ = *device_->Allocate(kSize * kSize * 4);
  const DeviceBuffer result_ = *device_->Allocate(kSize * kSize * 4);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream();
  std::vector<float> values_;
};

TEST_F(GpuMatmulTune, TheFastestIsTakenAndHasItsBitsWhereItIsUsedAgain) {
  const auto guesses = New();
  const std::vector<float> guessed = Multiplied(*guesses);
  TheOptions().fastest_product = 1;
  const auto tuned = New();
  const CublasLt::Algorithm algorithm = Tuned(*tuned, Product());
  const std::vector<float> fastest = Multiplied(*tuned);
  EXPECT_NE(fastest, guessed);
  TheOptions().fastest_product = 0;
  const auto again = New();
  EXPECT_TRUE(*again->Use(Product(), algorithm));
  EXPECT_EQ(Multiplied(*again), fastest);
  const auto anew = New();
  Tuned(*anew, Product());
  EXPECT_EQ(Multiplied(*anew), guessed);
}

TEST_F(GpuMatmulTune, TheFirstGuessStaysWhereNoneIsFaster) {
  TheOptions().fastest_product = -1;  // they take the same time
  const auto matmul = New();
  Tuned(*matmul, Product());
  const auto guesses = New();
  EXPECT_EQ(Multiplied(*matmul), Multiplied(*guesses));
}

// Ranks measure at the same time.
TEST_F(GpuMatmulTune, TheFastestIsTakenWhateverIsMeasuredOnAnotherGpu) {
  TheOptions().num_gpus = 2;
  TheOptions().fastest_product = 0;
  const auto measure = [this](int gpu) {
    const std::unique_ptr<Device> device = *CreateCudaDevice(gpu);
    const std::unique_ptr<Stream> stream = *device->CreateStream();
    const DeviceBuffer memory = *device->Allocate(GpuMatmul::OperandBytes(Product()));
    std::set<CublasLt::Algorithm> chosen;
    for (int i = 0; i < 10; ++i) {
      const auto matmul = *GpuMatmul::Create(device.get());
      chosen.insert(*matmul->Tune(Product(), memory.As<std::byte>(), *stream));
    }
    return chosen;
  };
  std::set<CublasLt::Algorithm> of_other;
  std::thread other([&] { of_other = measure(1); });
  const std::set<CublasLt::Algorithm> of_this = measure(0);
  other.join();
  EXPECT_EQ(of_this.size(), 1u);
  EXPECT_EQ(of_other, of_this);
}

TEST_F(GpuMatmulTune, AProductWithABiasAndOneThatIsAddedUpAreMeasuredToo) {
  MatmulProduct product = Product();
  product.bias_alignment = 4;
  Tuned(*New(), product);
  MatmulShape added = shape_;
  added.accumulate = true;
  EXPECT_EQ(ProductOf(added, operand_.address(), operand_.address(), result_.address(), nullptr),
            Product());
}

TEST_F(GpuMatmulTune, AnAlgorithmOfAnotherLibraryIsNotUsed) {
  const CublasLt::Algorithm algorithm = Tuned(*New(), Product());
  TheOptions().cublaslt_version = 120900;
  const auto matmul = New();
  EXPECT_EQ(matmul->LibraryVersion(), "12.9.0");
  EXPECT_FALSE(*matmul->Use(Product(), algorithm));
  Tuned(*matmul, Product());
  Multiplied(*matmul);
}

}  // namespace
}  // namespace forebay
