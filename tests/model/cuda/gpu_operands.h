// Operators on a GPU against those of the CPU: operands of one type, rounded to it on both sides.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/tests/model/cpu/reference.h"
#include "gtest/gtest.h"

namespace forebay::cuda {

using Floats = std::vector<float>;

// Between two neighbours, relative to the value.
constexpr double SpacingOf(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-23;
}

// `shift` elements behind an address that is aligned to 256 bytes.
struct DeviceValues {
  DeviceBuffer buffer;
  DType dtype = DType::kF32;
  int64_t count = 0;
  int64_t shift = 0;
  void* address() const { return buffer.As<std::byte>() + shift * SizeOf(dtype); }
  float* floats() const { return static_cast<float*>(address()); }
};

class GpuOps : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << MessageOf(device.status());
    device_ = *std::move(device);
    stream_ = *device_->CreateStream();
    auto context = Context::Create(device_.get(), stream_.get(), &budget_,
                                   {.dtype = GetParam(), .scratch_bytes = int64_t{8} << 20});
    if (!context.ok()) GTEST_SKIP() << MessageOf(context.status());
    context_ = *std::move(context);
  }

  static float Rounded(DType dtype, float value) {
    if (dtype == DType::kBF16) return Bf16ToFloat(FloatToBf16(value));
    return dtype == DType::kF16 ? Fp16ToFloat(FloatToFp16(value)) : value;
  }
  // Normal numbers that the operands' type has.
  Floats Random(int64_t count, uint64_t seed, double scale = 1.0) const {
    Floats values = cpu::RandomFloats(count, seed, scale);
    for (float& value : values) value = Rounded(GetParam(), value);
    return values;
  }

  DeviceValues OnDevice(const Floats& values, DType dtype, int64_t shift = 0) {
    DeviceValues to = {.dtype = dtype, .count = static_cast<int64_t>(values.size())};
    to.shift = shift;
    to.buffer = *device_->Allocate(std::max<int64_t>(1, (to.count + shift) * SizeOf(dtype)));
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[i * 4], &values[i], 4);
      } else {
        const uint16_t bits =
            dtype == DType::kBF16 ? FloatToBf16(values[i]) : FloatToFp16(values[i]);
        std::memcpy(&bytes[i * 2], &bits, 2);
      }
    }
    EXPECT_TRUE(stream_->CopyToDevice(to.address(), bytes).ok());
    EXPECT_TRUE(stream_->Await().ok());  // the bytes may go now
    return to;
  }
  DeviceValues OnDevice(const Floats& values) { return OnDevice(values, GetParam()); }
  DeviceValues Fp32OnDevice(const Floats& values) { return OnDevice(values, DType::kF32); }
  // Filled with what is no number.
  DeviceValues Unset(int64_t count, DType dtype) {
    return OnDevice(Floats(static_cast<size_t>(count), NAN), dtype);
  }
  DeviceValues Unset(int64_t count) { return Unset(count, GetParam()); }
  template <typename T>
  DeviceBuffer ArrayOnDevice(const std::vector<T>& values) {
    DeviceBuffer to =
        *device_->Allocate(std::max<int64_t>(1, static_cast<int64_t>(values.size() * sizeof(T))));
    EXPECT_TRUE(stream_->CopyToDevice(to.address(), std::as_bytes(std::span(values))).ok());
    EXPECT_TRUE(stream_->Await().ok());
    return to;
  }

  std::vector<std::byte> BytesOf(const DeviceValues& from) {
    std::vector<std::byte> bytes(static_cast<size_t>(from.count * SizeOf(from.dtype)));
    EXPECT_TRUE(stream_->CopyToHost(bytes, from.address()).ok());
    EXPECT_TRUE(stream_->Await().ok());
    return bytes;
  }
  Floats ToHost(const DeviceValues& from) {
    const std::vector<std::byte> bytes = BytesOf(from);
    Floats values(static_cast<size_t>(from.count));
    for (size_t i = 0; i < values.size(); ++i) {
      if (from.dtype == DType::kF32) {
        std::memcpy(&values[i], &bytes[i * 4], 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, &bytes[i * 2], 2);
        values[i] = from.dtype == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
      }
    }
    return values;
  }

  // Each value within `roundings` of the type, of the value or (where terms cancel) of `scale`.
  void ExpectClose(const DeviceValues& actual, const Floats& expected, double scale = 1.0,
                   double roundings = 1.0) {
    const Floats values = ToHost(actual);
    ASSERT_EQ(values.size(), expected.size());
    const double of_sums = 4e-6;  // orders of fp32 sums
    const double relative = roundings * SpacingOf(actual.dtype) * 0.51 + of_sums;
    for (size_t i = 0; i < values.size(); ++i) {
      const double size = std::max(scale, std::abs(static_cast<double>(expected[i])));
      const double error = std::abs(static_cast<double>(values[i]) - expected[i]);
      ASSERT_LE(error, relative * size)
          << "element " << i << ": " << values[i] << ", not " << expected[i];
    }
  }

  MemoryBudget budget_{int64_t{1} << 40};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Context> context_;
  cpu::Context cpu_{1, cpu::Precision::kFp32};
};

inline std::string TypeName(const testing::TestParamInfo<DType>& type) {
  return type.param == DType::kF32 ? "Fp32" : type.param == DType::kBF16 ? "Bf16" : "Fp16";
}
#define FOREBAY_TEST_TYPES(suite)                                                                 \
  INSTANTIATE_TEST_SUITE_P(Types, suite, testing::Values(DType::kBF16, DType::kF16, DType::kF32), \
                           TypeName)

}  // namespace forebay::cuda
