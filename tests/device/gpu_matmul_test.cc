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

// So many elements behind an aligned address the operands begin.
struct Shifts {
  int64_t a = 0;
  int64_t b = 0;
  int64_t d = 0;
};

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

  static int64_t Stride(int64_t given, int64_t columns) { return given == 0 ? columns : given; }

  // The largest difference from sums in double, against the size of what was added. What lies
  // between the rows of d has to stay as it was.
  double ErrorOf(const MatmulShape& shape, const Shifts& shifts = {}, bool with_bias = false) {
    const int64_t lda = Stride(shape.lda, shape.transpose_a ? shape.m : shape.k);
    const int64_t ldb = Stride(shape.ldb, shape.transpose_b ? shape.k : shape.n);
    const int64_t ldd = Stride(shape.ldd, shape.n);
    std::vector<float> a = Numbers(shifts.a + (shape.transpose_a ? shape.k : shape.m) * lda, 1);
    std::vector<float> b = Numbers(shifts.b + (shape.transpose_b ? shape.n : shape.k) * ldb, 2);
    std::vector<float> d = Numbers(shifts.d + shape.m * ldd, 3);
    std::vector<float> bias = Numbers(shape.n, 4);
    const DeviceBuffer on_a = OnDevice(Rounded(shape.inputs, a));
    const DeviceBuffer on_b = OnDevice(Rounded(shape.inputs, b));
    const DeviceBuffer on_bias = OnDevice(Rounded(shape.output, bias));
    std::vector<std::byte> found = Rounded(shape.output, d);
    const DeviceBuffer on_d = OnDevice(found);
    const auto at = [](const DeviceBuffer& buffer, int64_t shift, DType dtype) {
      return buffer.As<std::byte>() + shift * SizeOf(dtype);
    };
    const absl::Status status = matmul_->Multiply(
        shape, at(on_a, shifts.a, shape.inputs), at(on_b, shifts.b, shape.inputs),
        at(on_d, shifts.d, shape.output), *stream_, with_bias ? on_bias.address() : nullptr);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(stream_->CopyToHost(found, on_d.address()).ok());
    EXPECT_TRUE(stream_->Await().ok());
    double most = 0;
    for (int64_t i = 0; i < shifts.d + shape.m * ldd; ++i) {
      const int64_t row = (i - shifts.d) / ldd, column = (i - shifts.d) % ldd;
      if (i < shifts.d || column >= shape.n) {
        EXPECT_EQ(At(shape.output, found, i), d[static_cast<size_t>(i)]);
        continue;
      }
      double sum = with_bias ? bias[static_cast<size_t>(column)] : 0;
      for (int64_t k = 0; k < shape.k; ++k) {
        const int64_t in_a = shifts.a + (shape.transpose_a ? k * lda + row : row * lda + k);
        const int64_t in_b = shifts.b + (shape.transpose_b ? column * ldb + k : k * ldb + column);
        sum += static_cast<double>(a[static_cast<size_t>(in_a)]) * b[static_cast<size_t>(in_b)];
      }
      if (shape.accumulate) sum += d[static_cast<size_t>(i)];
      most = std::max(most, std::abs(At(shape.output, found, i) - sum));
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

// Slices of fused tensors: on 16 bytes, and on a single element.
TEST_F(GpuMatmulTest, RowsMayHaveGaps) {
  for (const int64_t gap : {int64_t{8}, int64_t{3}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const MatmulShape shape = {.m = 9,
                                   .n = 16,
                                   .k = 24,
                                   .transpose_a = transpose_a,
                                   .transpose_b = transpose_b,
                                   .lda = (transpose_a ? 9 : 24) + gap,
                                   .ldb = (transpose_b ? 24 : 16) + 2 * gap,
                                   .ldd = 16 + 3 * gap,
                                   .output = DType::kF32,
                                   .accumulate = true};
        EXPECT_LT(ErrorOf(shape), 4e-6);
        EXPECT_LT(ErrorOf(shape, {.a = 8, .b = 16, .d = 4}), 4e-6);
      }
    }
  }
}

TEST_F(GpuMatmulTest, AddressesNeedNotBeAligned) {
  const MatmulShape shape = {.m = 5, .n = 7, .k = 11, .output = DType::kF32};
  for (const Shifts& shifts : {Shifts{.a = 1}, Shifts{.b = 2}, Shifts{.d = 1}, Shifts{4, 1, 3}}) {
    EXPECT_LT(ErrorOf(shape, shifts), 4e-6);
  }
}

TEST_F(GpuMatmulTest, ABiasIsAddedToEveryRow) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool accumulate : {false, true}) {
      const MatmulShape shape = {.m = 5,
                                 .n = 24,
                                 .k = 16,
                                 .transpose_b = true,
                                 .inputs = dtype,
                                 .output = dtype,
                                 .accumulate = accumulate};
      EXPECT_LT(ErrorOf(shape, {}, true), dtype == DType::kF32 ? 4e-6 : 0.02);
      EXPECT_LT(ErrorOf(shape), dtype == DType::kF32 ? 4e-6 : 0.02);  // the same without
    }
  }
}

TEST_F(GpuMatmulTest, ShapesThatAreNoneAreErrors) {
  EXPECT_THAT(MessageOf(matmul_->Multiply({.m = 2, .n = 3, .k = 4, .ldb = 2}, nullptr, nullptr,
                                          nullptr, *stream_)),
              HasSubstr("[4, 3] with 2 elements from row to row"));
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
  const uint32_t epilogue = CublasLt::kAddBias;
  EXPECT_EQ(library.MatmulDescSetAttribute(desc, CublasLt::kEpilogue, &epilogue, 4), 0);
  const void* const bias = &epilogue;
  EXPECT_EQ(library.MatmulDescSetAttribute(desc, CublasLt::kBiasPointer, &bias, sizeof(bias)), 0);
  EXPECT_NE(library.MatmulDescSetAttribute(desc, CublasLt::kBiasPointer, &bias, 4), 0);
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
  const uint32_t alignment = 16;
  for (const int attribute : {CublasLt::kAlignmentOfA, CublasLt::kAlignmentOfB,
                              CublasLt::kAlignmentOfC, CublasLt::kAlignmentOfD}) {
    EXPECT_EQ(library.MatmulPreferenceSetAttribute(preference, attribute, &alignment, 4), 0);
    EXPECT_NE(library.MatmulPreferenceSetAttribute(preference, attribute, &alignment, 8), 0);
  }
  EXPECT_EQ(library.MatmulPreferenceDestroy(preference), 0);
}

}  // namespace
}  // namespace forebay
