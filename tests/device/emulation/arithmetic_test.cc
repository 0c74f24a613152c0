// Arithmetic in which a GPU differs from the host, and which the emulated GPU has on request.
#include <cuda_runtime.h>

#include <bit>
#include <limits>
#include <memory>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/device/device.h"
#include "forebay/device/emulation/options.h"
#include "forebay/tests/device/ptx_kernels.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using emulation::TheOptions;

class EmulatedArithmetic : public testing::Test {
 protected:
  ~EmulatedArithmetic() override { TheOptions() = before_; }

  template <typename T>
  DeviceBuffer ToDevice(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    DeviceBuffer buffer = *device_->Allocate(static_cast<int64_t>(bytes.size()));
    EXPECT_TRUE(stream_->CopyToDevice(buffer.address(), bytes).ok());
    EXPECT_TRUE(stream_->Await().ok());
    return buffer;
  }

  // Element [0, 0] of what is in `to`, and the product of a row and a column of bf16 on a tensor
  // core.
  float Multiply(float to, const std::vector<float>& row, const std::vector<float>& column) {
    std::vector<float> d(16 * 8);
    d[0] = to;
    std::vector<Bf16> a(16 * 16), b(16 * 8);
    for (size_t k = 0; k < 16; ++k) {
      a[k] = FloatToBf16(row[k]);
      b[k * 8] = FloatToBf16(column[k]);
    }
    const DeviceBuffer d_there = ToDevice(d), a_there = ToDevice(a), b_there = ToDevice(b);
    EXPECT_TRUE(stream_
                    ->Launch([&](void* native_stream) {
                      EXPECT_EQ(
                          ptx_kernels::Multiply(d_there.As<float>(), a_there.As<__nv_bfloat16>(),
                                                b_there.As<__nv_bfloat16>(),
                                                static_cast<cudaStream_t>(native_stream)),
                          cudaSuccess);
                      return absl::OkStatus();
                    })
                    .ok());
    EXPECT_TRUE(stream_->CopyToHost(std::as_writable_bytes(std::span(d)), d_there.address()).ok());
    EXPECT_TRUE(stream_->Await().ok());
    return d[0];
  }

  EmulatedArithmetic() {
    TheOptions().truncated_products = 0;
    TheOptions().has_gpu_nans = false;
  }

  const emulation::Options before_ = TheOptions();
  const std::unique_ptr<Device> device_ = *CreateCudaDevice(0);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream();
};

TEST_F(EmulatedArithmetic, TensorCoresThatTruncateLoseWhatIsBelowTheLargestTerm) {
  std::vector<float> small(16, 0x1p-12f);
  small[0] = 1;
  const float exact = 1 + 15 * 0x1p-24f;  // rounded to nearest
  EXPECT_EQ(Multiply(0, small, small), exact);
  EXPECT_GT(exact, 1.0f);
  for (const int at_once : {4, 8, 16}) {
    TheOptions().truncated_products = at_once;
    EXPECT_EQ(Multiply(0, small, small), 1.0f) << at_once;
    EXPECT_EQ(Multiply(-1, std::vector<float>(16, -0x1p-12f), std::vector<float>(16, 0x1p-12f)),
              -1.0f)
        << at_once;
    // Nothing is lost of what fits.
    EXPECT_EQ(Multiply(3, std::vector<float>(16, 0.75f), std::vector<float>(16, -8)), -93.0f)
        << at_once;
  }
}

TEST_F(EmulatedArithmetic, WhatIsNoNumberHasTheBitsOfAGpuOnRequest) {
  std::vector<float> infinite(16), zero(16);
  infinite[3] = std::numeric_limits<float>::infinity();
  EXPECT_NE(std::bit_cast<uint32_t>(Multiply(0, infinite, zero)), 0x7fffffffu);
  TheOptions().has_gpu_nans = true;
  EXPECT_EQ(std::bit_cast<uint32_t>(Multiply(0, infinite, zero)), 0x7fffffffu);
  TheOptions().truncated_products = 8;
  EXPECT_EQ(std::bit_cast<uint32_t>(Multiply(0, infinite, zero)), 0x7fffffffu);
}

}  // namespace
}  // namespace forebay
