// The kernels over arrays: the bits of the reference, whatever the threads, and errors for what
// cannot be.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/capi/c.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNumElems = 200'003;

// Values around zero, of weights' size.
std::vector<float> Values(uint64_t seed) {
  const CounterRng random(seed, 1);
  std::vector<float> values(kNumElems);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int32_t>(random.Words(i)[0])) * 0x1p-33f;
  }
  return values;
}

struct Arrays {
  std::vector<float> weights32 = Values(1);
  std::vector<uint16_t> weights16 = std::vector<uint16_t>(kNumElems);
  std::vector<int16_t> remainder = std::vector<int16_t>(kNumElems);
  std::vector<float> m = std::vector<float>(kNumElems);
  std::vector<float> v = std::vector<float>(kNumElems);
  friend bool operator==(const Arrays&, const Arrays&) = default;
};

class Kernels {
 public:
  explicit Kernels(int threads) {
    EXPECT_EQ(forebay_kernels_create(threads, &kernels_, nullptr), FOREBAY_OK);
  }
  ~Kernels() { forebay_kernels_destroy(kernels_); }
  operator forebay_kernels*() const { return kernels_; }  // NOLINT

 private:
  forebay_kernels* kernels_ = nullptr;
};

forebay_kernel_run RunOf(Arrays& arrays, const std::vector<float>& gradient, int optimizer) {
  forebay_kernel_run run = {};
  run.struct_size = sizeof(run);
  run.optimizer = optimizer;
  run.weight_dtype = FOREBAY_BF16;
  run.gradient_dtype = FOREBAY_F32;
  run.num_elems = kNumElems;
  run.weights = arrays.weights16.data();
  run.remainder = arrays.remainder.data();
  run.m = arrays.m.data();
  run.v = arrays.v.data();
  run.gradient = gradient.data();
  run.group = {.lr = 1e-3, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  run.step = 3;
  run.gradient_scale = 0.5;
  return run;
}

template <typename Call>
std::string RefusalOf(const Call& call) {
  char* message = nullptr;
  EXPECT_EQ(call(&message), FOREBAY_USAGE);
  const std::string text = message == nullptr ? "" : message;
  forebay_free(message);
  return text;
}

class KernelsOfEachOptimizer : public ::testing::TestWithParam<int> {};

TEST_P(KernelsOfEachOptimizer, HaveTheBitsOfTheReferenceWithAnyThreads) {
  const std::vector<float> gradient = Values(2);
  const std::vector<float> master = Values(1);
  std::vector<Arrays> results;
  for (const int threads : {1, 3}) {
    const Kernels kernels(threads);
    Arrays& arrays = results.emplace_back();
    ASSERT_EQ(forebay_kernels_split(kernels, master.data(), kNumElems, arrays.weights16.data(),
                                    arrays.remainder.data(), nullptr),
              FOREBAY_OK);
    const forebay_kernel_run run = RunOf(arrays, gradient, GetParam());
    ASSERT_EQ(forebay_kernels_update(kernels, &run, 1, nullptr), FOREBAY_OK);
    EXPECT_NE(arrays.weights16, Arrays().weights16);
  }
  EXPECT_TRUE(results[0] == results[1]);

  Arrays reference;
  for (size_t i = 0; i < master.size(); ++i) {
    const SplitMaster split = Split(master[i]);
    reference.weights16[i] = split.w16;
    reference.remainder[i] = split.r16;
  }
  const OptimizerConfig config = {
      .kind = static_cast<OptimizerKind>(GetParam()), .beta1 = 0.9, .beta2 = 0.99, .momentum = 0.9};
  TileRun run;
  run.num_elems = kNumElems;
  run.weight = reference.weights16.data();
  run.remainder = reference.remainder.data();
  if (HasFirstMoment(config)) run.m = reference.m.data();
  if (HasSecondMoment(config)) run.v = reference.v.data();
  run.gradient = gradient.data();
  run.gradient_dtype = DType::kF32;
  run.lr_scale = 1e-3;
  run.weight_decay = 0.1;
  UpdateScalars scalars = {.step = 3, .lr = 1, .gradient_scale = 0.5};
  scalars.beta1 = 0.9;
  UpdateRunRef(config, scalars, run);
  EXPECT_TRUE(results[0] == reference);

  const Kernels kernels(2);
  std::vector<float> joined(kNumElems);
  ASSERT_EQ(forebay_kernels_join(kernels, reference.weights16.data(), reference.remainder.data(),
                                 kNumElems, joined.data(), nullptr),
            FOREBAY_OK);
  for (size_t i = 0; i < joined.size(); i += 997) {
    EXPECT_EQ(joined[i], Join(reference.weights16[i], reference.remainder[i]));
  }
}
INSTANTIATE_TEST_SUITE_P(All, KernelsOfEachOptimizer,
                         ::testing::Values(FOREBAY_ADAMW, FOREBAY_ADAM, FOREBAY_ADAGRAD,
                                           FOREBAY_LION, FOREBAY_SGD));

// Without masters: the fp32 update of the same values, rounded once.
TEST(CKernels, RoundsWeightsAndMomentsOf16BitsToEven) {
  const std::vector<float> gradient = Values(2);
  struct Format {
    int dtype;
    uint16_t (*round)(float);
    float (*widen)(uint16_t);
  };
  for (const Format& format : {Format{FOREBAY_BF16, FloatToBf16, Bf16ToFloat},
                               Format{FOREBAY_F16, FloatToFp16, Fp16ToFloat}}) {
    for (const bool rounds_moments : {false, true}) {
      Arrays wide;
      std::vector<uint16_t> weights, m, v;
      for (size_t i = 0; i < wide.weights32.size(); ++i) {
        weights.push_back(format.round(wide.weights32[i]));
        m.push_back(format.round(wide.weights32[i] / 4));
        v.push_back(format.round(wide.weights32[i] * wide.weights32[i]));
        wide.weights32[i] = format.widen(weights[i]);
        wide.m[i] = format.widen(m[i]);
        wide.v[i] = format.widen(v[i]);
      }
      forebay_kernel_run run = RunOf(wide, gradient, FOREBAY_ADAMW);
      run.weight_dtype = FOREBAY_F32;
      run.weights = wide.weights32.data();
      run.remainder = nullptr;
      forebay_kernel_run rounded = run;
      rounded.weight_dtype = format.dtype;
      rounded.weights = weights.data();
      rounded.round_weights = 1;
      std::vector<float> own_m = wide.m;
      std::vector<float> own_v = wide.v;
      rounded.moment_dtype = rounds_moments ? format.dtype : FOREBAY_F32;
      rounded.m = rounds_moments ? static_cast<void*>(m.data()) : own_m.data();
      rounded.v = rounds_moments ? static_cast<void*>(v.data()) : own_v.data();
      const Kernels kernels(2);
      ASSERT_EQ(forebay_kernels_update(kernels, &run, 1, nullptr), FOREBAY_OK);
      ASSERT_EQ(forebay_kernels_update(kernels, &rounded, 1, nullptr), FOREBAY_OK);
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_EQ(weights[i], format.round(wide.weights32[i])) << i;
        if (!rounds_moments) continue;
        ASSERT_EQ(m[i], format.round(wide.m[i])) << i;
        ASSERT_EQ(v[i], format.round(wide.v[i])) << i;
      }
      EXPECT_TRUE(rounds_moments || (own_m == wide.m && own_v == wide.v));
    }
  }
}

TEST(CKernels, SumsSquaresOfAnyType) {
  const std::vector<float> values = Values(4);
  std::vector<uint16_t> bf16;
  std::vector<uint16_t> fp16;
  double sums[3] = {};
  for (const float value : values) {
    bf16.push_back(FloatToBf16(value));
    fp16.push_back(FloatToFp16(value));
    sums[FOREBAY_F32] += static_cast<double>(value) * value;
    sums[FOREBAY_BF16] += std::pow(static_cast<double>(Bf16ToFloat(bf16.back())), 2);
    sums[FOREBAY_F16] += std::pow(static_cast<double>(Fp16ToFloat(fp16.back())), 2);
  }
  const void* const arrays[] = {values.data(), bf16.data(), fp16.data()};
  const Kernels one(1);
  const Kernels three(3);
  for (int dtype = 0; dtype < 3; ++dtype) {
    double sum = 0;
    double again = 0;
    ASSERT_EQ(forebay_kernels_sum_of_squares(one, dtype, arrays[dtype], kNumElems, &sum, nullptr),
              FOREBAY_OK);
    ASSERT_EQ(
        forebay_kernels_sum_of_squares(three, dtype, arrays[dtype], kNumElems, &again, nullptr),
        FOREBAY_OK);
    EXPECT_EQ(sum, again);
    EXPECT_NEAR(sum, sums[dtype], 1e-9 * sum);
  }
}

TEST(CKernels, RefusesWhatCannotBe) {
  const Kernels kernels(1);
  Arrays arrays;
  const std::vector<float> gradient = Values(2);
  const auto refused = [&](auto change) {
    forebay_kernel_run run = RunOf(arrays, gradient, FOREBAY_ADAMW);
    change(run);
    return RefusalOf([&](char** m) { return forebay_kernels_update(kernels, &run, 1, m); });
  };
  using Run = forebay_kernel_run;
  EXPECT_THAT(refused([](Run& run) { run.v = nullptr; }), HasSubstr("v is NULL"));
  EXPECT_THAT(refused([](Run& run) { run.remainder = nullptr; }), HasSubstr("remainder"));
  EXPECT_THAT(refused([](Run& run) { run.step = 0; }), HasSubstr("step is 0"));
  EXPECT_THAT(refused([](Run& run) { run.group.eps = 0; }), HasSubstr("eps"));
  EXPECT_THAT(refused([](Run& run) { run.group.beta2 = 1; }), HasSubstr("beta2"));
  EXPECT_THAT(refused([](Run& run) { run.group.lr = NAN; }), HasSubstr("lr nan"));
  EXPECT_THAT(refused([](Run& run) { run.optimizer = 5; }), HasSubstr("optimizer is 5"));
  EXPECT_THAT(refused([](Run& run) { run.weight_dtype = -1; }), HasSubstr("weight_dtype is -1"));
  EXPECT_THAT(refused([](Run& run) { run.moment_dtype = FOREBAY_BF16; }),
              HasSubstr("set round_weights"));
  EXPECT_THAT(refused([](Run& run) { run.struct_size = 0; }), HasSubstr("struct_size"));
  EXPECT_TRUE(arrays == Arrays());
  double sum = 7;
  std::vector<float> master(8);
  EXPECT_THAT(RefusalOf([&](char** m) {
                return forebay_kernels_sum_of_squares(kernels, FOREBAY_F32, gradient.data(), -1,
                                                      &sum, m);
              }),
              HasSubstr("num_elems is -1"));
  EXPECT_THAT(RefusalOf([&](char** m) {
                return forebay_kernels_split(kernels, master.data(), -1, arrays.weights16.data(),
                                             arrays.remainder.data(), m);
              }),
              HasSubstr("num_elems is -1"));
  EXPECT_EQ(sum, 7);
  forebay_kernels* none = nullptr;
  EXPECT_THAT(RefusalOf([&](char** m) { return forebay_kernels_create(-1, &none, m); }),
              HasSubstr("num_threads is -1"));
}

}  // namespace
}  // namespace forebay
