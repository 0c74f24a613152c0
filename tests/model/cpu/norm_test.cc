#include <gtest/gtest.h>

#include <cmath>

#include "reference.h"

namespace forebay::cpu {
namespace {

constexpr double kEps = 1e-5;

Doubles RmsNormInDouble(const Doubles& x, const Doubles& weight, size_t width) {
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += x[row + i] * x[row + i];
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(width) + kEps);
    for (size_t i = 0; i < width; ++i) y[row + i] = x[row + i] * inverse * weight[i];
  }
  return y;
}

Doubles LayerNormInDouble(const Doubles& x, const Doubles& weight, const Doubles& bias,
                          size_t width) {
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0;
    double variance = 0;
    for (size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) {
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(width);
    }
    for (size_t i = 0; i < width; ++i) {
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + kEps) * weight[i] + bias[i];
    }
  }
  return y;
}

struct RmsResult {
  Floats y, inverse_rms, dx, dweight;
};
RmsResult RunRms(Context& context, const Floats& x, const void* weight, DType dtype,
                 const Floats& dy, int64_t width, const Floats& dx_before,
                 const Floats& dweight_before) {
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  RmsResult r{Floats(x.size()), Floats(static_cast<size_t>(rows)), dx_before, dweight_before};
  RmsNormForward(context, x.data(), weight, dtype, kEps, rows, width, r.y.data(),
                 r.inverse_rms.data());
  RmsNormBackward(context, x.data(), weight, dtype, r.inverse_rms.data(), dy.data(), rows, width,
                  r.dx.data(), !dx_before.empty() && !std::isnan(dx_before[0]), r.dweight.data());
  return r;
}

class Norm : public testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  const int64_t rows_ = GetParam().first;
  const int64_t width_ = GetParam().second;
  const Floats x_ = RandomFloats(rows_ * width_, 1, 2.0);
  const Floats weight_ = RandomFloats(width_, 2);
  const Floats bias_ = RandomFloats(width_, 3);
  const Floats dy_ = RandomFloats(rows_ * width_, 4);
  const Floats unset_ = Floats(x_.size(), NAN);
  const Floats zeros_ = Floats(static_cast<size_t>(width_), 0.0f);
};

TEST_P(Norm, RmsNormEqualsFloat64) {
  Context context(2, Precision::kFp32);
  const RmsResult r = RunRms(context, x_, weight_.data(), DType::kF32, dy_, width_, unset_, zeros_);
  const Doubles expected =
      RmsNormInDouble(ToDouble(x_), ToDouble(weight_), static_cast<size_t>(width_));
  EXPECT_LT(RelativeError(r.y, expected), 5e-7);
}

TEST_P(Norm, RmsNormGradientsEqualFiniteDifferences) {
  Context context(2, Precision::kFp32);
  const RmsResult r = RunRms(context, x_, weight_.data(), DType::kF32, dy_, width_, unset_, zeros_);
  const Doubles x = ToDouble(x_), weight = ToDouble(weight_), dy = ToDouble(dy_);
  const size_t width = static_cast<size_t>(width_);
  // One row at a time: rows do not influence each other.
  for (size_t row = 0; row < x.size(); row += width * 17) {
    const Doubles own(x.begin() + static_cast<int64_t>(row),
                      x.begin() + static_cast<int64_t>(row + width));
    const Doubles dx = NumericalGradient(
        [&](const Doubles& v) {
          return DotProduct(RmsNormInDouble(v, weight, width), std::span(dy).subspan(row, width));
        },
        own);
    EXPECT_LT(RelativeError(std::span(r.dx).subspan(row, width), dx, 0.1), 3e-6);
  }
  // y is linear in the weight.
  Doubles dweight(width, 0.0);
  const Doubles normal = RmsNormInDouble(x, Doubles(width, 1.0), width);
  for (size_t i = 0; i < x.size(); ++i) dweight[i % width] += normal[i] * dy[i];
  EXPECT_LT(RelativeError(r.dweight, dweight), 3e-6);
}

TEST_P(Norm, LayerNormAndItsGradientsEqualFloat64) {
  Context context(2, Precision::kFp32);
  const size_t width = static_cast<size_t>(width_);
  Floats y(x_.size()), mean(static_cast<size_t>(rows_)), inverse_std(mean.size());
  Floats dx = unset_, dweight = zeros_, dbias = zeros_;
  LayerNormForward(context, x_.data(), weight_.data(), bias_.data(), DType::kF32, kEps, rows_,
                   width_, y.data(), mean.data(), inverse_std.data());
  LayerNormBackward(context, x_.data(), weight_.data(), DType::kF32, mean.data(),
                    inverse_std.data(), dy_.data(), rows_, width_, dx.data(), false, dweight.data(),
                    dbias.data());
  const Doubles x = ToDouble(x_), weight = ToDouble(weight_), bias = ToDouble(bias_),
                dy = ToDouble(dy_);
  EXPECT_LT(RelativeError(y, LayerNormInDouble(x, weight, bias, width)), 1e-6);
  for (size_t row = 0; row < x.size(); row += width * 17) {
    const Doubles own(x.begin() + static_cast<int64_t>(row),
                      x.begin() + static_cast<int64_t>(row + width));
    const Doubles expected = NumericalGradient(
        [&](const Doubles& v) {
          return DotProduct(LayerNormInDouble(v, weight, bias, width),
                            std::span(dy).subspan(row, width));
        },
        own);
    EXPECT_LT(RelativeError(std::span(dx).subspan(row, width), expected, 0.1), 3e-6);
  }
  Doubles expected_dweight(width, 0.0), expected_dbias(width, 0.0);
  const Doubles normal = LayerNormInDouble(x, Doubles(width, 1.0), Doubles(width, 0.0), width);
  for (size_t i = 0; i < x.size(); ++i) {
    expected_dweight[i % width] += normal[i] * dy[i];
    expected_dbias[i % width] += dy[i];
  }
  EXPECT_LT(RelativeError(dweight, expected_dweight), 3e-6);
  EXPECT_LT(RelativeError(dbias, expected_dbias), 3e-6);
}

TEST_P(Norm, GradientsAreAddedToWhatIsThere) {
  Context context(2, Precision::kFp32);
  const RmsResult fresh =
      RunRms(context, x_, weight_.data(), DType::kF32, dy_, width_, unset_, zeros_);
  const Floats dx_before = RandomFloats(rows_ * width_, 5);
  const Floats dweight_before = RandomFloats(width_, 6);
  const RmsResult added =
      RunRms(context, x_, weight_.data(), DType::kF32, dy_, width_, dx_before, dweight_before);
  Doubles dx, dweight;
  for (size_t i = 0; i < dx_before.size(); ++i) dx.push_back(double{dx_before[i]} + fresh.dx[i]);
  for (size_t i = 0; i < zeros_.size(); ++i) {
    dweight.push_back(double{dweight_before[i]} + fresh.dweight[i]);
  }
  EXPECT_LT(RelativeError(added.dx, dx), 1e-6);
  EXPECT_LT(RelativeError(added.dweight, dweight), 1e-6);
}

TEST_P(Norm, Bf16WeightsAreExactlyTheirWidenedValues) {
  Context context(2, Precision::kBf16);
  const std::vector<Bf16> weight = ToBf16(weight_);
  const Floats wide = Widened(weight);
  const RmsResult a = RunRms(context, x_, weight.data(), DType::kBF16, dy_, width_, unset_, zeros_);
  const RmsResult b = RunRms(context, x_, wide.data(), DType::kF32, dy_, width_, unset_, zeros_);
  EXPECT_TRUE(SameBits(a.y, b.y));
  EXPECT_TRUE(SameBits(a.dx, b.dx));
}

TEST_P(Norm, IsTheSameBitsForAllThreadCounts) {
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    RmsResult r = RunRms(context, x_, weight_.data(), DType::kF32, dy_, width_, unset_, zeros_);
    Floats all = r.y;
    all.insert(all.end(), r.dx.begin(), r.dx.end());
    all.insert(all.end(), r.dweight.begin(), r.dweight.end());
    return all;
  }));
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    Floats y(x_.size()), mean(static_cast<size_t>(rows_)), inverse_std(mean.size());
    Floats all = unset_, dweight = zeros_, dbias = zeros_;
    LayerNormForward(context, x_.data(), weight_.data(), bias_.data(), DType::kF32, kEps, rows_,
                     width_, y.data(), mean.data(), inverse_std.data());
    LayerNormBackward(context, x_.data(), weight_.data(), DType::kF32, mean.data(),
                      inverse_std.data(), dy_.data(), rows_, width_, all.data(), false,
                      dweight.data(), dbias.data());
    for (const Floats* part : {&y, &dweight, &dbias})
      all.insert(all.end(), part->begin(), part->end());
    return all;
  }));
}

using Size = std::pair<int64_t, int64_t>;
INSTANTIATE_TEST_SUITE_P(Sizes, Norm,
                         testing::Values(Size{1, 8}, Size{3, 1}, Size{70, 576}, Size{200, 13},
                                         Size{5000, 32}));

}  // namespace
}  // namespace forebay::cpu
