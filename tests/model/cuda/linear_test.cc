// Linear layers on a GPU.
#include "gpu_operands.h"

namespace forebay::cuda {
namespace {

struct LinearCase {
  int64_t tokens, in, out;
  bool in_out = false;
  int64_t gap = 0;  // elements between rows of the weights that belong to others
};
// Slices on 16 bytes and between them; enough tokens for several blocks of a bias' gradient.
constexpr LinearCase kCases[] = {{1, 16, 24},       {70, 24, 16, false, 8}, {150, 9, 7, false, 3},
                                 {3, 24, 16, true}, {5, 16, 24, true, 16},  {130, 8, 264}};

class LinearOnGpu : public GpuOps {
 protected:
  void Prepare(const LinearCase& c) {
    case_ = c;
    columns_ = c.in_out ? c.out : c.in;
    num_weights_ = (c.in_out ? c.in : c.out) * (columns_ + c.gap);
    weight_ = Random(num_weights_, 1, 0.5);
    bias_ = Random(c.out, 2);
    x_ = Random(c.tokens * c.in, 3);
    dy_ = Random(c.tokens * c.out, 4);
    on_weight_ = OnDevice(weight_);
    on_bias_ = OnDevice(bias_);
    on_x_ = OnDevice(x_);
    on_dy_ = OnDevice(dy_);
  }
  Linear Of(DType dtype, const void* weight, const void* bias) const {
    return {.dtype = dtype,
            .weight = weight,
            .bias = bias,
            .in = case_.in,
            .out = case_.out,
            .in_out = case_.in_out,
            .row_stride = case_.gap == 0 ? 0 : columns_ + case_.gap};
  }
  Linear OnCpu(bool bias = false) const {
    return Of(DType::kF32, weight_.data(), bias ? bias_.data() : nullptr);
  }
  Linear OnGpu(bool bias = false) const {
    return Of(GetParam(), on_weight_.address(), bias ? on_bias_.address() : nullptr);
  }
  // The size of a sum of so many products.
  static double SizeOf(int64_t count) { return std::sqrt(static_cast<double>(count)); }

  LinearCase case_ = {};
  int64_t columns_ = 0, num_weights_ = 0;
  Floats weight_, bias_, x_, dy_;
  DeviceValues on_weight_, on_bias_, on_x_, on_dy_;
};

TEST_P(LinearOnGpu, ForwardIsTheCpus) {
  for (const LinearCase& c : kCases) {
    Prepare(c);
    for (const bool bias : {false, true}) {
      for (const bool accumulate : {false, true}) {
        Floats y = Random(c.tokens * c.out, 5);
        const DeviceValues on_y = accumulate ? OnDevice(y) : Unset(c.tokens * c.out);
        cpu::LinearForward(cpu_, OnCpu(bias), x_.data(), c.tokens, y.data(), accumulate);
        ASSERT_TRUE(LinearForward(*context_, OnGpu(bias), on_x_.address(), c.tokens, on_y.address(),
                                  accumulate)
                        .ok());
        ExpectClose(on_y, y);
      }
    }
  }
}

TEST_P(LinearOnGpu, GradientsAreTheCpus) {
  for (const LinearCase& c : kCases) {
    Prepare(c);
    for (const bool accumulate : {false, true}) {
      Floats dx = Random(c.tokens * c.in, 5);
      const DeviceValues on_dx = accumulate ? OnDevice(dx) : Unset(c.tokens * c.in);
      cpu::LinearBackwardInput(cpu_, OnCpu(), dy_.data(), c.tokens, dx.data(), accumulate);
      ASSERT_TRUE(LinearBackwardInput(*context_, OnGpu(), on_dy_.address(), c.tokens,
                                      on_dx.address(), accumulate)
                      .ok());
      ExpectClose(on_dx, dx, SizeOf(c.out));
    }
    // Also what lies between the rows stays as it was.
    Floats dweight = cpu::RandomFloats(num_weights_, 6), dbias = cpu::RandomFloats(c.out, 7);
    const DeviceValues on_dweight = Fp32OnDevice(dweight), on_dbias = Fp32OnDevice(dbias);
    cpu::LinearBackwardWeight(cpu_, OnCpu(), x_.data(), dy_.data(), c.tokens, dweight.data(),
                              dbias.data());
    ASSERT_TRUE(LinearBackwardWeight(*context_, OnGpu(), on_x_.address(), on_dy_.address(),
                                     c.tokens, on_dweight.floats(), on_dbias.floats())
                    .ok());
    ExpectClose(on_dweight, dweight, SizeOf(c.tokens));
    ExpectClose(on_dbias, dbias, SizeOf(c.tokens));
  }
}

TEST_P(LinearOnGpu, NoTokensAreNoWork) {
  Prepare(kCases[0]);
  const DeviceValues dweight = Fp32OnDevice(Floats(static_cast<size_t>(num_weights_), 1.0f));
  ASSERT_TRUE(LinearForward(*context_, OnGpu(), on_x_.address(), 0, nullptr).ok());
  ASSERT_TRUE(LinearBackwardInput(*context_, OnGpu(), on_dy_.address(), 0, nullptr, false).ok());
  ASSERT_TRUE(LinearBackwardWeight(*context_, OnGpu(), on_x_.address(), on_dy_.address(), 0,
                                   dweight.floats(), nullptr)
                  .ok());
  EXPECT_EQ(ToHost(dweight), Floats(static_cast<size_t>(num_weights_), 1.0f));
}

FOREBAY_TEST_TYPES(LinearOnGpu);

}  // namespace
}  // namespace forebay::cuda
