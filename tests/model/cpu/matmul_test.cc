#include "forebay/model/cpu/matmul_bf16.h"

#include <gtest/gtest.h>

#include <cmath>

#include "forebay/base/process/parallel.h"
#include "forebay/model/cpu/one_thread_openmp.h"
#include "reference.h"

namespace forebay::cpu {
namespace {

// bf16 products exist on some CPUs only; the same code runs in fp32 on all.
class MatmulCacheTest : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(MatmulCacheTest, EqualsFloat64FromSeveralThreadsAtOnce) {
  const auto [transposed, accumulate] = GetParam();
  const int64_t m = 32, n = 40, k = 24, lda = 24, ldc = 48, num_blocks = 16;
  const Floats a = RandomFloats(num_blocks * m * lda, 1), b = RandomFloats(k * n, 2);
  const Floats before = RandomFloats(num_blocks * m * ldc, 3);
  Floats c = before;
  ThreadPool pool(3, "test", ConfineOpenMpToThisThread);
  const OneThreadOpenMp confined;
  MatmulCache cache(3);
  std::vector<Scratch> scratch(3);
  MatmulCache::Primitive& primitive = cache.Get({.m = m,
                                                 .n = n,
                                                 .k = k,
                                                 .a_row_stride = lda,
                                                 .a_column_stride = 1,
                                                 .b_row_stride = transposed ? 1 : n,
                                                 .b_column_stride = transposed ? k : 1,
                                                 .ldc = ldc,
                                                 .accumulate = accumulate,
                                                 .input = DType::kF32});
  pool.ParallelForWithThread(num_blocks, [&](int64_t block, int thread) {
    MatmulCache::Run(primitive, thread, scratch[static_cast<size_t>(thread)],
                     a.data() + block * m * lda, b.data(), c.data() + block * m * ldc);
  });
  const Doubles product =
      ReferenceProduct(ToDouble(a), ToDouble(b), num_blocks * m, n, k, false, transposed);
  Doubles expected = ToDouble(before);
  for (size_t row = 0; row < static_cast<size_t>(num_blocks * m); ++row) {
    for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
      double& value = expected[row * static_cast<size_t>(ldc) + j];
      value = (accumulate ? value : 0) + product[row * static_cast<size_t>(n) + j];
    }
  }
  EXPECT_LT(RelativeError(c, expected), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Forms, MatmulCacheTest,
                         testing::Combine(testing::Bool(), testing::Bool()));

TEST(MatmulCache, MakesEachShapeOnce) {
  MatmulCache cache(1);
  const MatmulShape shape{.m = 8,
                          .n = 8,
                          .k = 8,
                          .a_row_stride = 8,
                          .a_column_stride = 1,
                          .b_row_stride = 8,
                          .b_column_stride = 1,
                          .ldc = 8,
                          .input = DType::kF32};
  MatmulShape other = shape;
  other.accumulate = true;
  MatmulCache::Primitive* first = &cache.Get(shape);
  EXPECT_NE(&cache.Get(other), first);
  EXPECT_EQ(&cache.Get(shape), first);
}

}  // namespace
}  // namespace forebay::cpu
