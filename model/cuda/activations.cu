// SwiGLU and GELU. A thread takes 16 bytes of each operand.
#include "forebay/model/cuda/launch.h"

namespace forebay::cuda {
namespace {

constexpr int kThreads = 256;

FOREBAY_DEVICE float Sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

struct SwiGlu {
  static constexpr int kInputs = 2;
  static constexpr int kOutputs = 1;
  static FOREBAY_DEVICE void Apply(const float (&in)[2], float (&out)[1]) {
    out[0] = in[0] * Sigmoid(in[0]) * in[1];
  }
};

// silu(g) = g * s with s = sigmoid(g); its derivative is s * (1 + g * (1 - s)).
struct SwiGluGradient {
  static constexpr int kInputs = 3;
  static constexpr int kOutputs = 2;
  static FOREBAY_DEVICE void Apply(const float (&in)[3], float (&out)[2]) {
    const float gate = in[0];
    const float s = Sigmoid(gate);
    out[0] = in[2] * in[1] * (s * (1.0f + gate * (1.0f - s)));
    out[1] = in[2] * (gate * s);
  }
};

// gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3).
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

FOREBAY_DEVICE float GeluGate(float x) {
  return Sigmoid(kTwiceSqrtTwoOverPi * (x + kCubic * x * x * x));
}

struct GeluTanh {
  static constexpr int kInputs = 1;
  static constexpr int kOutputs = 1;
  static FOREBAY_DEVICE void Apply(const float (&in)[1], float (&out)[1]) {
    out[0] = in[0] * GeluGate(in[0]);
  }
};

// With s = sigmoid(2u): gelu' = s + x * s * (1 - s) * 2u'.
struct GeluTanhGradient {
  static constexpr int kInputs = 2;
  static constexpr int kOutputs = 1;
  static FOREBAY_DEVICE void Apply(const float (&in)[2], float (&out)[1]) {
    const float x = in[0];
    const float s = GeluGate(x);
    const float slope = kTwiceSqrtTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
    out[0] = in[1] * (s + x * (s * (1.0f - s) * slope));
  }
};

// Outputs may be inputs, so a thread reads all that it needs before it writes.
template <typename Op, typename T>
struct Operands {
  const T* inputs[Op::kInputs];
  T* outputs[Op::kOutputs];
};

template <typename Op, typename T, int kCount>
FOREBAY_DEVICE void ApplyAt(const Operands<Op, T>& operands, int64_t begin) {
  float in[Op::kInputs][kCount];
  float out[Op::kOutputs][kCount];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) Load(operands.inputs[k] + begin, in[k]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float of_one[Op::kInputs];
    float result[Op::kOutputs];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) of_one[k] = in[k][i];
    Op::Apply(of_one, result);
#pragma unroll
    for (int k = 0; k < Op::kOutputs; ++k) out[k][i] = result[k];
  }
#pragma unroll
  for (int k = 0; k < Op::kOutputs; ++k) Store(out[k], operands.outputs[k] + begin);
}

template <typename Op, typename T, int kCount>
__global__ void MapKernel(Operands<Op, T> operands, int64_t count) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  if (begin + kCount <= count) {
    ApplyAt<Op, T, kCount>(operands, begin);
  } else {
    for (int64_t i = begin; i < count; ++i) ApplyAt<Op, T, 1>(operands, i);
  }
}

template <typename Op>
absl::Status Map(Context& context, const char* operation, const void* const (&inputs)[Op::kInputs],
                 void* const (&outputs)[Op::kOutputs], int64_t count) {
  if (count == 0) return absl::OkStatus();
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    Operands<Op, T> operands;
    bool wide = true;
    for (int k = 0; k < Op::kInputs; ++k) {
      operands.inputs[k] = static_cast<const T*>(inputs[k]);
      wide = wide && AreAligned({inputs[k]});
    }
    for (int k = 0; k < Op::kOutputs; ++k) {
      operands.outputs[k] = static_cast<T*>(outputs[k]);
      wide = wide && AreAligned({outputs[k]});
    }
    return VisitWidth<T>(wide, [&](auto width) {
      constexpr int kCount = decltype(width)::value;
      return Launch(context, operation, &MapKernel<Op, T, kCount>,
                    Grid(CeilDiv(count, int64_t{kThreads} * kCount)), kThreads, operands, count);
    });
  });
}

}  // namespace

absl::Status SwiGluForward(Context& context, const void* gate, const void* up, int64_t count,
                           void* out) {
  return Map<SwiGlu>(context, "SwiGLU", {gate, up}, {out}, count);
}
absl::Status SwiGluBackward(Context& context, const void* gate, const void* up, const void* dout,
                            int64_t count, void* dgate, void* dup) {
  return Map<SwiGluGradient>(context, "SwiGLU's gradient", {gate, up, dout}, {dgate, dup}, count);
}
absl::Status GeluTanhForward(Context& context, const void* x, int64_t count, void* out) {
  return Map<GeluTanh>(context, "GELU", {x}, {out}, count);
}
absl::Status GeluTanhBackward(Context& context, const void* x, const void* dout, int64_t count,
                              void* dx) {
  return Map<GeluTanhGradient>(context, "GELU's gradient", {x, dout}, {dx}, count);
}

}  // namespace forebay::cuda
