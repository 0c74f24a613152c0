// One thread an element, one warp a block of moments: like the CPU kernels this waits for memory,
// and a warp's accesses lie side by side. What kind of planes there are is the same for all
// threads, so asking costs nothing beside the memory.
#include <cstdint>

#include "forebay/device/cuda_error.h"
#include "forebay/device/kernel.h"
#include "forebay/optimizer/kernels/elements_cuda.h"
#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/update_cuda.h"

namespace forebay {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr unsigned kWholeWarp = 0xffffffffu;
static_assert(kMomentBlockElems == 32, "a block of moments is a warp");

__device__ float LoadGradient(const TileRun& run, int64_t i) {
  if (run.gradient_dtype == DType::kF32) return static_cast<const float*>(run.gradient)[i];
  const uint16_t bits = static_cast<const uint16_t*>(run.gradient)[i];
  return run.gradient_dtype == DType::kBF16 ? FloatOfBf16(bits) : FloatOfFp16(bits);
}

__device__ uint32_t BitsWithNan(float value) {
  return value == value ? __float_as_uint(value) : kNanBits;
}

// As Join and Split of base/bfloat16.h.
__device__ float LoadWeight(const TileRun& run, int64_t i) {
  if (run.weights == WeightFormat::kFp16) return run.master[i];
  if (run.weights == WeightFormat::kFp32) return static_cast<const float*>(run.weight)[i];
  const uint32_t high = static_cast<uint32_t>(static_cast<const uint16_t*>(run.weight)[i]) << 16;
  return __uint_as_float(high + static_cast<uint32_t>(static_cast<int32_t>(run.remainder[i])));
}
__device__ void StoreWeight(const TileRun& run, int64_t i, float p) {
  if (run.weights == WeightFormat::kFp32) {
    static_cast<float*>(run.weight)[i] = p;
  } else if (run.weights == WeightFormat::kFp16) {
    run.master[i] = p;
    static_cast<uint16_t*>(run.weight)[i] = Fp16OfFloat(p);
  } else {
    const uint32_t bits = BitsWithNan(p);
    const uint16_t high = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    static_cast<uint16_t*>(run.weight)[i] = high;
    run.remainder[i] = static_cast<int16_t>(bits - (static_cast<uint32_t>(high) << 16));
  }
}

__device__ float LoadMoment(const TileRun& run, const void* plane, int64_t i) {
  return run.moments == MomentFormat::kFp32 ? static_cast<const float*>(plane)[i]
                                            : FloatOfBf16(static_cast<const uint16_t*>(plane)[i]);
}
__device__ float LoadM(const TileRun& run, int64_t i) {
  if (run.moments != MomentFormat::kInt8) return LoadMoment(run, run.m, i);
  const float step =
      __fmul_rn(FloatOfBf16(run.m_scale[i / kMomentBlockElems]), 1.0f / kMostSignedCode);
  return __fmul_rn(static_cast<float>(static_cast<const int8_t*>(run.m)[i]), step);
}
__device__ float LoadV(const TileRun& run, int64_t i) {
  if (run.moments != MomentFormat::kInt8) return LoadMoment(run, run.v, i);
  const float step =
      __fmul_rn(FloatOfBf16(run.v_scale[i / kMomentBlockElems]), 1.0f / kMostUnsignedCode);
  const float y = __fmul_rn(static_cast<float>(static_cast<const uint8_t*>(run.v)[i]), step);
  return __fmul_rn(y, y);
}

// As BlockDither of rule_scalars.h, and what the element has in its block.
__device__ uint32_t DitherAt(const RuleScalars& s, const TileRun& run, int64_t i) {
  const uint32_t elem = static_cast<uint32_t>(run.first_elem + i);
  uint32_t h = elem / static_cast<uint32_t>(kMomentBlockElems) + s.rounding_key;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  h = (h ^ (h >> 16)) + s.rounding_step;
  return h + elem % static_cast<uint32_t>(kMomentBlockElems) * kDitherOfElem;
}

__device__ void StoreMoment(const TileRun& run, void* plane, int64_t i, float value,
                            uint32_t dither) {
  if (run.moments == MomentFormat::kFp32) {
    static_cast<float*>(plane)[i] = value;
  } else {
    static_cast<uint16_t*>(plane)[i] =
        static_cast<uint16_t>((BitsWithNan(value) + (dither >> 16)) >> 16);
  }
}

// The bits of the bf16 scale of a warp's magnitudes, NaN if one of them is; every lane of the warp
// takes part.
__device__ uint32_t ScaleBits(float magnitude) {
  uint32_t most = BitsWithNan(magnitude);  // magnitudes compare as their bits do
  for (int distance = 16; distance > 0; distance /= 2) {
    most = max(most, __shfl_xor_sync(kWholeWarp, most, distance));
  }
  if (most == kNanBits) return kNanBits;
  const float largest = __uint_as_float(most);
  return largest >= kLeastMomentScale ? (__float_as_uint(largest) + 0xffffu) & 0xffff0000u : 0u;
}
__device__ float InverseOf(uint32_t scale_bits) {
  return scale_bits == 0u ? 0.0f : __fdiv_rn(1.0f, __uint_as_float(scale_bits));
}
__device__ float CodeDither(uint32_t dither) {
  return __fsub_rn(__uint_as_float((dither >> 9) | 0x3f800000u), 1.5f);
}
__device__ uint8_t ByteOf(float code) {
  return static_cast<uint8_t>(__float_as_uint(__fadd_rn(code, kRoundsToWhole)));
}

// Every lane of the warp takes part; `is_here`: the lane's element exists.
__device__ void StoreInt8(const RuleScalars& s, const TileRun& run, int64_t i, bool is_here,
                          float m, float v) {
  __syncwarp();  // all lanes have read the scales that one of them writes
  const bool is_first = i % kMomentBlockElems == 0;
  const float w = CodeDither(DitherAt(s, run, i));
  if (run.m != nullptr) {
    const uint32_t scale = ScaleBits(is_here ? fabsf(m) : 0.0f);
    const float inverse = __fmul_rn(kMostSignedCode, InverseOf(scale));
    if (is_here && is_first) run.m_scale[i / kMomentBlockElems] = scale >> 16;
    const float code = __fadd_rn(__fmul_rn(m, inverse), w);
    if (is_here) static_cast<uint8_t*>(run.m)[i] = ByteOf(code);
  }
  if (run.v != nullptr) {
    const float y = __fsqrt_rn(v);
    const uint32_t scale = ScaleBits(is_here ? y : 0.0f);
    const float inverse = __fmul_rn(kMostUnsignedCode, InverseOf(scale));
    if (is_here && is_first) run.v_scale[i / kMomentBlockElems] = scale >> 16;
    const float least = inverse != 0.0f && v > 0.0f ? 1.0f : 0.0f;
    const float code = fmaxf(__fsub_rn(__fmul_rn(y, inverse), w), least);
    if (is_here) static_cast<uint8_t*>(run.v)[i] = ByteOf(code);
  }
}

// The reference's operations (rule_scalars.h). The intrinsics round each on its own: nvcc never
// fuses them.
struct Element {
  float p, m, v;
};

__device__ void UpdateAdam(const RuleScalars& s, bool decoupled, float g, Element& e) {
  if (!decoupled) g = __fadd_rn(g, __fmul_rn(s.l2, e.p));
  e.m = __fadd_rn(e.m, __fmul_rn(__fsub_rn(g, e.m), s.one_minus_beta1));
  e.v = __fadd_rn(__fmul_rn(e.v, s.beta2), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
  const float denominator =
      __fadd_rn(__fmul_rn(__fsqrt_rn(e.v), s.inverse_sqrt_correction2), s.eps);
  const float p = decoupled ? __fmul_rn(e.p, s.keep) : e.p;
  e.p = __fsub_rn(p, __fmul_rn(s.step_size, __fdiv_rn(e.m, denominator)));
}

__device__ void UpdateAdagrad(const RuleScalars& s, float g, Element& e) {
  g = __fadd_rn(g, __fmul_rn(s.l2, e.p));
  e.v = __fadd_rn(e.v, __fmul_rn(g, g));
  const float step = __fdiv_rn(g, __fadd_rn(__fsqrt_rn(e.v), s.eps));
  e.p = __fsub_rn(e.p, __fmul_rn(s.step_size, step));
}

__device__ void UpdateLion(const RuleScalars& s, float g, Element& e) {
  const float c = __fadd_rn(__fmul_rn(e.m, s.beta1), __fmul_rn(g, s.one_minus_beta1));
  const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
  e.p = __fsub_rn(__fmul_rn(e.p, s.keep), __fmul_rn(s.step_size, sign));
  e.m = __fadd_rn(__fmul_rn(e.m, s.beta2), __fmul_rn(g, s.one_minus_beta2));
}

__device__ void UpdateSgd(const RuleScalars& s, bool has_momentum, bool nesterov, float g,
                          Element& e) {
  g = __fadd_rn(g, __fmul_rn(s.l2, e.p));
  if (has_momentum) {
    e.m = __fadd_rn(__fmul_rn(e.m, s.momentum), g);
    g = nesterov ? __fadd_rn(g, __fmul_rn(e.m, s.momentum)) : e.m;
  }
  e.p = __fsub_rn(e.p, __fmul_rn(s.step_size, g));
}

__global__ void UpdateKernel(RuleScalars s, TileRun run, OptimizerKind kind, bool has_momentum,
                             bool nesterov) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreadsPerBlock + threadIdx.x;
  const bool is_here = i < run.num_elems;
  Element e = {0, 0, 0};
  if (is_here) {
    const float g = __fmul_rn(LoadGradient(run, i), s.gradient_scale);
    e.p = LoadWeight(run, i);
    if (run.m != nullptr) e.m = LoadM(run, i);
    if (run.v != nullptr) e.v = LoadV(run, i);
    if (kind == OptimizerKind::kAdagrad) {
      UpdateAdagrad(s, g, e);
    } else if (kind == OptimizerKind::kLion) {
      UpdateLion(s, g, e);
    } else if (kind == OptimizerKind::kSgd) {
      UpdateSgd(s, has_momentum, nesterov, g, e);
    } else {
      UpdateAdam(s, kind == OptimizerKind::kAdamW, g, e);
    }
    StoreWeight(run, i, e.p);
  }
  if (run.moments == MomentFormat::kInt8) {
    StoreInt8(s, run, i, is_here, e.m, e.v);
  } else if (is_here) {
    const uint32_t dither = DitherAt(s, run, i);
    if (run.m != nullptr) StoreMoment(run, run.m, i, e.m, dither);
    if (run.v != nullptr) StoreMoment(run, run.v, i, e.v, ~dither);
  }
}

}  // namespace

absl::Status UpdateRunCuda(const OptimizerConfig& config, const UpdateScalars& scalars,
                           const TileRun& run, void* cuda_stream) {
  CheckRun(config, run);
  if (run.num_elems == 0) return absl::OkStatus();
  const int64_t num_blocks = (run.num_elems + kThreadsPerBlock - 1) / kThreadsPerBlock;
  const cudaError_t error =
      LaunchKernel(&UpdateKernel, dim3(static_cast<unsigned>(num_blocks)), dim3(kThreadsPerBlock),
                   0, static_cast<cudaStream_t>(cuda_stream), RuleScalars(config, scalars, run),
                   run, config.kind, HasFirstMoment(config), config.nesterov);
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaError("launching the update kernel", error);
}

}  // namespace forebay
