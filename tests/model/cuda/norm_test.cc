// RMSNorm and LayerNorm on a GPU.
#include "gpu_operands.h"

namespace forebay::cuda {
namespace {

constexpr double kEps = 1e-5;

// Rows of a warp and of a block; several blocks of rows; widths that are no whole accesses of 16
// bytes, and such that are.
struct NormShape {
  int64_t rows, width;
};
constexpr NormShape kShapes[] = {{5, 1}, {70, 64}, {150, 13}, {3, 1030}, {130, 288}, {2, 2056}};

class NormOnGpu : public GpuOps {
 protected:
  void Prepare(const NormShape& shape) {
    rows_ = shape.rows;
    width_ = shape.width;
    x_ = Random(rows_ * width_, 1, 2.0);
    weight_ = Random(width_, 2);
    bias_ = Random(width_, 3);
    dy_ = Random(rows_ * width_, 4);
    dx_before_ = Random(rows_ * width_, 5);
    dweight_before_ = cpu::RandomFloats(width_, 6);
    dbias_before_ = cpu::RandomFloats(width_, 7);
    on_x_ = OnDevice(x_);
    on_weight_ = OnDevice(weight_);
    on_bias_ = OnDevice(bias_);
    on_dy_ = OnDevice(dy_);
    mean_.assign(static_cast<size_t>(rows_), NAN);
    inverse_ = mean_;
  }
  double RowsScale() const { return std::sqrt(static_cast<double>(rows_)); }

  int64_t rows_ = 0, width_ = 0;
  Floats x_, weight_, bias_, dy_, dx_before_, dweight_before_, dbias_before_, mean_, inverse_;
  DeviceValues on_x_, on_weight_, on_bias_, on_dy_;
};

TEST_P(NormOnGpu, RmsNormIsTheCpus) {
  for (const NormShape& shape : kShapes) {
    SCOPED_TRACE(shape.width);
    Prepare(shape);
    Floats y(x_.size());
    cpu::RmsNormForward(cpu_, x_.data(), weight_.data(), DType::kF32, kEps, rows_, width_, y.data(),
                        inverse_.data());
    const DeviceValues on_y = Unset(rows_ * width_), inverse = Unset(rows_, DType::kF32);
    ASSERT_TRUE(RmsNormForward(*context_, on_x_.address(), on_weight_.address(), kEps, rows_,
                               width_, on_y.address(), inverse.floats())
                    .ok());
    ExpectClose(on_y, y);
    ExpectClose(inverse, inverse_, 0.01);
    for (const bool adds : {false, true}) {
      Floats dx = dx_before_, dweight = dweight_before_;
      cpu::RmsNormBackward(cpu_, x_.data(), weight_.data(), DType::kF32, inverse_.data(),
                           dy_.data(), rows_, width_, dx.data(), adds, dweight.data());
      const DeviceValues on_dx = adds ? OnDevice(dx_before_) : Unset(rows_ * width_);
      const DeviceValues on_dweight = Fp32OnDevice(dweight_before_);
      ASSERT_TRUE(RmsNormBackward(*context_, on_x_.address(), on_weight_.address(),
                                  inverse.floats(), on_dy_.address(), rows_, width_,
                                  on_dx.address(), adds, on_dweight.floats())
                      .ok());
      ExpectClose(on_dx, dx, shape.width == 1 ? 30.0 : 1.0);  // a row of one cancels
      ExpectClose(on_dweight, dweight, RowsScale());
    }
  }
}

TEST_P(NormOnGpu, LayerNormIsTheCpus) {
  for (const NormShape& shape : kShapes) {
    if (shape.width == 1) continue;  // all are their mean
    SCOPED_TRACE(shape.width);
    Prepare(shape);
    Floats y(x_.size());
    cpu::LayerNormForward(cpu_, x_.data(), weight_.data(), bias_.data(), DType::kF32, kEps, rows_,
                          width_, y.data(), mean_.data(), inverse_.data());
    const DeviceValues on_y = Unset(rows_ * width_), mean = Unset(rows_, DType::kF32),
                       inverse = Unset(rows_, DType::kF32);
    ASSERT_TRUE(LayerNormForward(*context_, on_x_.address(), on_weight_.address(),
                                 on_bias_.address(), kEps, rows_, width_, on_y.address(),
                                 mean.floats(), inverse.floats())
                    .ok());
    ExpectClose(on_y, y);
    ExpectClose(mean, mean_, 0.1);
    ExpectClose(inverse, inverse_, 0.1);
    for (const bool adds : {false, true}) {
      Floats dx = dx_before_, dweight = dweight_before_, dbias = dbias_before_;
      cpu::LayerNormBackward(cpu_, x_.data(), weight_.data(), DType::kF32, mean_.data(),
                             inverse_.data(), dy_.data(), rows_, width_, dx.data(), adds,
                             dweight.data(), dbias.data());
      const DeviceValues on_dx = adds ? OnDevice(dx_before_) : Unset(rows_ * width_);
      const DeviceValues on_dweight = Fp32OnDevice(dweight_before_);
      const DeviceValues on_dbias = Fp32OnDevice(dbias_before_);
      ASSERT_TRUE(LayerNormBackward(*context_, on_x_.address(), on_weight_.address(), mean.floats(),
                                    inverse.floats(), on_dy_.address(), rows_, width_,
                                    on_dx.address(), adds, on_dweight.floats(), on_dbias.floats())
                      .ok());
      ExpectClose(on_dx, dx);
      ExpectClose(on_dweight, dweight, RowsScale());
      ExpectClose(on_dbias, dbias, RowsScale());
    }
  }
}

TEST_P(NormOnGpu, AddressesNeedNotBeAligned) {
  Prepare({3, 64});
  Floats y(x_.size());
  cpu::RmsNormForward(cpu_, x_.data(), weight_.data(), DType::kF32, kEps, rows_, width_, y.data(),
                      inverse_.data());
  const DeviceValues shifted = OnDevice(x_, GetParam(), 1), on_y = Unset(rows_ * width_);
  const DeviceValues inverse = Unset(rows_, DType::kF32);
  ASSERT_TRUE(RmsNormForward(*context_, shifted.address(), on_weight_.address(), kEps, rows_,
                             width_, on_y.address(), inverse.floats())
                  .ok());
  ExpectClose(on_y, y);
}

// More rows than blocks of the least size: partial sums of more rows each.
TEST_P(NormOnGpu, WeightGradientsOfManyRowsAreTheCpus) {
  Prepare({64 * 128 + 5, 6});
  Floats y(x_.size()), dx(x_.size()), dweight = dweight_before_;
  cpu::RmsNormForward(cpu_, x_.data(), weight_.data(), DType::kF32, kEps, rows_, width_, y.data(),
                      inverse_.data());
  cpu::RmsNormBackward(cpu_, x_.data(), weight_.data(), DType::kF32, inverse_.data(), dy_.data(),
                       rows_, width_, dx.data(), false, dweight.data());
  const DeviceValues inverse = Fp32OnDevice(inverse_), on_dx = Unset(rows_ * width_);
  const DeviceValues on_dweight = Fp32OnDevice(dweight_before_);
  ASSERT_TRUE(RmsNormBackward(*context_, on_x_.address(), on_weight_.address(), inverse.floats(),
                              on_dy_.address(), rows_, width_, on_dx.address(), false,
                              on_dweight.floats())
                  .ok());
  ExpectClose(on_dweight, dweight, RowsScale());
}

FOREBAY_TEST_TYPES(NormOnGpu);

}  // namespace
}  // namespace forebay::cuda
