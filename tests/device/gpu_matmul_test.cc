// Products of matrices against plain loops: on the emulated GPU, and on a real one.
#include <cmath>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/device/gpu_matmul.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

class GpuMatmulTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << MessageOf(device.status());
    device_ = *std::move(device);
    auto matmul = GpuMatmul::Create(device_.get());
    if (!matmul.ok()) GTEST_SKIP() << MessageOf(matmul.status());
    matmul_ = *std::move(matmul);
    stream_ = *device_->CreateStream();
  }

  static std::vector<float> Numbers(int64_t num_elems, int seed) {
    const CounterRng rng(static_cast<uint64_t>(seed));
    std::vector<float> numbers;
    for (int64_t i = 0; i < num_elems; ++i) numbers.push_back(static_cast<float>(rng.Normal(i)));
    return numbers;
  }
  static std::vector<std::byte> Rounded(DType dtype, std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else if (dtype == DType::kBF16) {
        values[i] = Bf16ToFloat(reinterpret_cast<Bf16*>(bytes.data())[i] = FloatToBf16(values[i]));
      } else {
        values[i] = Fp16ToFloat(reinterpret_cast<Fp16*>(bytes.data())[i] = FloatToFp16(values[i]));
      }
    }
    return bytes;
  }
  static float At(DType dtype, const std::vector<std::byte>& bytes, int64_t i) {
    if (dtype == DType::kF32) return reinterpret_cast<const float*>(bytes.data())[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(bytes.data())[i];
    return dtype == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
  }
  DeviceBuffer OnDevice(const std::vector<std::byte>& bytes) {
    DeviceBuffer buffer = *device_->Allocate(static_cast<int64_t>(bytes.size()));
    EXPECT_TRUE(stream_->CopyToDevice(buffer.address(), bytes).ok());
    EXPECT_TRUE(stream_->Await().ok());  // the bytes may go now
    return buffer;
  }

  // The largest difference from sums in double, against the size of what was added.
  double ErrorOf(const MatmulShape& shape) {
    std::vector<float> a = Numbers(shape.m * shape.k, 1);
    std::vector<float> b = Numbers(shape.k * shape.n, 2);
    std::vector<float> d = Numbers(shape.m * shape.n, 3);
    const DeviceBuffer on_a = OnDevice(Rounded(shape.inputs, a));
    const DeviceBuffer on_b = OnDevice(Rounded(shape.inputs, b));
    std::vector<std::byte> found = Rounded(shape.output, d);
    const DeviceBuffer on_d = OnDevice(found);
    const absl::Status status =
        matmul_->Multiply(shape, on_a.address(), on_b.address(), on_d.address(), *stream_);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(stream_->CopyToHost(found, on_d.address()).ok());
    EXPECT_TRUE(stream_->Await().ok());
    double most = 0;
    for (int64_t row = 0; row < shape.m; ++row) {
      for (int64_t column = 0; column < shape.n; ++column) {
        double sum = 0;
        for (int64_t k = 0; k < shape.k; ++k) {
          const int64_t in_a = shape.transpose_a ? k * shape.m + row : row * shape.k + k;
          const int64_t in_b = shape.transpose_b ? column * shape.k + k : k * shape.n + column;
          sum += static_cast<double>(a[static_cast<size_t>(in_a)]) * b[static_cast<size_t>(in_b)];
        }
        const int64_t i = row * shape.n + column;
        if (shape.accumulate) sum += d[static_cast<size_t>(i)];
        most = std::max(most, std::abs(At(shape.output, found, i) - sum));
      }
    }
    return most / std::sqrt(static_cast<double>(shape.k));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<GpuMatmul> matmul_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(GpuMatmulTest, IsThatOfRowMajorMatrices) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          MatmulShape shape = {.m = 24,
                               .n = 40,
                               .k = 56,
                               .transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .inputs = dtype,
                               .output = DType::kF32,
                               .accumulate = accumulate};
          EXPECT_LT(ErrorOf(shape), 4e-6);
          shape.output = dtype;
          EXPECT_LT(ErrorOf(shape), dtype == DType::kF32 ? 4e-6 : 0.02);
        }
      }
    }
  }
}

TEST_F(GpuMatmulTest, ShapesThatAreNoneAreErrors) {
  EXPECT_THAT(
      MessageOf(matmul_->Multiply({.m = 0, .n = 1, .k = 1}, nullptr, nullptr, nullptr, *stream_)),
      HasSubstr("sizes are above 0"));
  EXPECT_THAT(MessageOf(matmul_->Multiply(
                  {.m = 1, .n = 1, .k = 1, .inputs = DType::kF32, .output = DType::kBF16}, nullptr,
                  nullptr, nullptr, *stream_)),
              HasSubstr("gives fp32 or fp32"));
}

// Also without a GPU, where the library is: that the declarations here are its own.
TEST(CublasLt, DescriptorsAreTakenAndWrongSizesAreNot) {
  const auto loaded = LoadCublasLt();
  if (!loaded.ok()) GTEST_SKIP() << MessageOf(loaded.status());
  const CublasLt& library = **loaded;
  CublasLt::MatmulDesc desc = nullptr;
  ASSERT_EQ(library.MatmulDescCreate(&desc, CublasLt::kComputeF32, CublasLt::kF32), 0);
  const int32_t transposed = CublasLt::kTransposed;
  EXPECT_EQ(library.MatmulDescSetAttribute(desc, CublasLt::kTransposeA, &transposed, 4), 0);
  EXPECT_NE(library.MatmulDescSetAttribute(desc, CublasLt::kTransposeA, &transposed, 2), 0);
  EXPECT_EQ(library.MatmulDescDestroy(desc), 0);
  CublasLt::Layout layout = nullptr;
  ASSERT_EQ(library.MatrixLayoutCreate(&layout, CublasLt::kBf16, 8, 4, 8), 0);
  EXPECT_EQ(library.MatrixLayoutDestroy(layout), 0);
  CublasLt::Preference preference = nullptr;
  ASSERT_EQ(library.MatmulPreferenceCreate(&preference), 0);
  const uint64_t bytes = 1 << 20;
  const uint32_t schemes = CublasLt::kReduceInOrder;
  EXPECT_EQ(library.MatmulPreferenceSetAttribute(preference, CublasLt::kMostWorkspaceBytes, &bytes,
                                                 sizeof(bytes)),
            0);
  EXPECT_EQ(library.MatmulPreferenceSetAttribute(preference, CublasLt::kReductionSchemes, &schemes,
                                                 sizeof(schemes)),
            0);
  EXPECT_NE(library.MatmulPreferenceSetAttribute(preference, CublasLt::kReductionSchemes, &bytes,
                                                 sizeof(bytes)),
            0);
  EXPECT_EQ(library.MatmulPreferenceDestroy(preference), 0);
}

}  // namespace
}  // namespace forebay
