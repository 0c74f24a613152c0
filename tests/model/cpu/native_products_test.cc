#include "forebay/model/cpu/native_products.h"

#include <gtest/gtest.h>

#include <string>

#include "reference.h"

namespace forebay::cpu {
namespace {

struct ProductShape {
  int64_t m, n, k;
  bool a_transposed = false, b_transposed = false, accumulate = false, has_bias = false;
};

// Cut by rows, by columns of few rows and of wide ones, in slices of k, and with rests everywhere.
constexpr ProductShape kProducts[] = {
    {.m = 1030, .n = 72, .k = 40, .b_transposed = true, .has_bias = true},
    {.m = 5, .n = 200, .k = 33, .accumulate = true},
    {.m = 300, .n = 450, .k = 24, .b_transposed = true, .accumulate = true},
    {.m = 40, .n = 4100, .k = 16, .b_transposed = true, .has_bias = true},
    {.m = 1100, .n = 2060, .k = 8},
    {.m = 20, .n = 24, .k = 20011},
    {.m = 20, .n = 24, .k = 20011, .accumulate = true},
    {.m = 700, .n = 90, .k = 70, .a_transposed = true, .accumulate = true},
    {.m = 50, .n = 1300, .k = 9, .a_transposed = true, .accumulate = true},
};

class NativeProductTest : public testing::TestWithParam<ProductShape> {
 protected:
  NativeProductTest()
      : a_(ToBf16(RandomFloats(shape_.m * shape_.k, 1))),
        b_(ToBf16(RandomFloats(shape_.k * shape_.n, 2))),
        bias_(ToBf16(RandomFloats(shape_.n, 3))),
        before_(RandomFloats(shape_.m * ldc_, 4)) {}

  Floats Multiply(int num_threads) {
    Context context(num_threads, Precision::kBf16);
    Floats c = before_;
    MultiplyNative(context.impl(), {.m = shape_.m,
                                    .n = shape_.n,
                                    .k = shape_.k,
                                    .a = a_.data(),
                                    .a_transposed = shape_.a_transposed,
                                    .b = b_.data(),
                                    .b_row_stride = shape_.b_transposed ? 1 : shape_.n,
                                    .b_column_stride = shape_.b_transposed ? shape_.k : 1,
                                    .bias = shape_.has_bias ? bias_.data() : nullptr,
                                    .c = c.data(),
                                    .ldc = ldc_,
                                    .accumulate = shape_.accumulate});
    return c;
  }

  const ProductShape shape_ = GetParam();
  const int64_t ldc_ = shape_.n + 3;
  const std::vector<Bf16> a_, b_, bias_;
  const Floats before_;
};

TEST_P(NativeProductTest, EqualsFloat64) {
  if (!CpuHasNativeBf16()) GTEST_SKIP() << "this CPU has no bf16 products";
  const Doubles product =
      ReferenceProduct(ToDouble(Widened(a_)), ToDouble(Widened(b_)), shape_.m, shape_.n, shape_.k,
                       shape_.a_transposed, shape_.b_transposed);
  Doubles expected = ToDouble(before_);
  for (int64_t row = 0; row < shape_.m; ++row) {
    for (int64_t column = 0; column < shape_.n; ++column) {
      double& value = expected[static_cast<size_t>(row * ldc_ + column)];
      value = (shape_.accumulate ? value : 0) +
              product[static_cast<size_t>(row * shape_.n + column)] +
              (shape_.has_bias ? Bf16ToFloat(bias_[static_cast<size_t>(column)]) : 0);
    }
  }
  EXPECT_LT(RelativeError(Multiply(3), expected), 5e-6);
}

TEST_P(NativeProductTest, IsTheSameBitsForAllThreadCounts) {
  if (!CpuHasNativeBf16()) GTEST_SKIP() << "this CPU has no bf16 products";
  EXPECT_EQ(Multiply(1), Multiply(3));
}

// Each element of C is of one block, each step of k of one slice, and neither is empty.
TEST_P(NativeProductTest, IsPlannedWithoutGapsOrRests) {
  const NativePlan plan = PlanNativeProduct(shape_.m, shape_.n, shape_.k, shape_.a_transposed);
  const auto covers = [](int64_t block, int64_t count, int64_t size) {
    return block * count >= size && block * (count - 1) < size;
  };
  EXPECT_TRUE(covers(plan.block_m, plan.num_m, shape_.m));
  EXPECT_TRUE(covers(plan.block_n, plan.num_n, shape_.n));
  EXPECT_TRUE(covers(plan.slice_k, plan.num_k, shape_.k));
}

std::string NameOfShape(const testing::TestParamInfo<ProductShape>& info) {
  const ProductShape& s = info.param;
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
         (s.accumulate ? "added" : "");
}
INSTANTIATE_TEST_SUITE_P(Shapes, NativeProductTest, testing::ValuesIn(kProducts), NameOfShape);

// As of a layer of SmolLM2, of its vocabulary, and of Llama-2 7B: 1,024 tokens, and 256.
TEST(PlanNativeProduct, HasTasksForManyThreads) {
  EXPECT_GE(PlanNativeProduct(1024, 576, 1536, false).num_tasks(), 8);
  EXPECT_GE(PlanNativeProduct(256, 49152, 576, false).num_tasks(), 12);
  EXPECT_GE(PlanNativeProduct(256, 576, 49152, false).num_tasks(), 12);
  EXPECT_GE(PlanNativeProduct(49152, 576, 256, true).num_tasks(), 12);
  EXPECT_GE(PlanNativeProduct(1024, 11008, 4096, false).num_tasks(), 12);
  EXPECT_GE(PlanNativeProduct(64, 576, 576, false).num_tasks(), 6);
}

TEST(PlanNativeProduct, SlicesTakeNoMoreMemoryThanTheyMay) {
  for (const int64_t m : {1, 256, 1024}) {
    for (const int64_t n : {1, 576, 2047}) {
      for (const int64_t k : {16384, 49152, 262144}) {
        const NativePlan plan = PlanNativeProduct(m, n, k, false);
        EXPECT_TRUE(plan.num_k == 1 || plan.num_k * m * n <= kMaxSlicedElems);
      }
    }
  }
}

}  // namespace
}  // namespace forebay::cpu
