// The reference that defines the bits of every update kernel. Also the vector kernels' tail, so it
// must stay exact.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "forebay/optimizer/kernels/update_simd.h"

namespace forebay {
namespace {

struct Element {
  float p = 0;
  float m = 0;
  float v = 0;
};

void UpdateAdam(const RuleScalars& s, bool decoupled, float g, Element& e) {
  if (!decoupled) g = g + s.l2 * e.p;
  e.m = e.m + (g - e.m) * s.one_minus_beta1;
  e.v = e.v * s.beta2 + (s.one_minus_beta2 * g) * g;
  const float denominator = std::sqrt(e.v) * s.inverse_sqrt_correction2 + s.eps;
  const float p = decoupled ? e.p * s.keep : e.p;
  e.p = p - s.step_size * (e.m / denominator);
}

void UpdateAdagrad(const RuleScalars& s, float g, Element& e) {
  g = g + s.l2 * e.p;
  e.v = e.v + g * g;
  e.p = e.p - s.step_size * (g / (std::sqrt(e.v) + s.eps));
}

void UpdateLion(const RuleScalars& s, float g, Element& e) {
  const float c = e.m * s.beta1 + g * s.one_minus_beta1;
  const float sign = static_cast<float>(c > 0.0f) - static_cast<float>(c < 0.0f);
  e.p = e.p * s.keep - s.step_size * sign;
  e.m = e.m * s.beta2 + g * s.one_minus_beta2;
}

void UpdateSgd(const RuleScalars& s, bool has_momentum, bool nesterov, float g, Element& e) {
  g = g + s.l2 * e.p;
  if (has_momentum) {
    e.m = e.m * s.momentum + g;
    g = nesterov ? g + e.m * s.momentum : e.m;
  }
  e.p = e.p - s.step_size * g;
}

void UpdateElement(const OptimizerConfig& config, const RuleScalars& s, float gradient,
                   Element& e) {
  const float g = gradient * s.gradient_scale;
  switch (config.kind) {
    case OptimizerKind::kAdamW:
      return UpdateAdam(s, /*decoupled=*/true, g, e);
    case OptimizerKind::kAdam:
      return UpdateAdam(s, /*decoupled=*/false, g, e);
    case OptimizerKind::kAdagrad:
      return UpdateAdagrad(s, g, e);
    case OptimizerKind::kLion:
      return UpdateLion(s, g, e);
    case OptimizerKind::kSgd:
      return UpdateSgd(s, HasFirstMoment(config), config.nesterov, g, e);
  }
  FOREBAY_CHECK(false);
}

float GradientAt(const TileRun& run, int64_t i) {
  if (run.gradient_dtype == DType::kF32) return static_cast<const float*>(run.gradient)[i];
  const uint16_t bits = static_cast<const uint16_t*>(run.gradient)[i];
  return run.gradient_dtype == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
}

float LoadWeight(const TileRun& run, int64_t i) {
  switch (run.weights) {
    case WeightFormat::kSplitBf16:
      return Join(static_cast<const Bf16*>(run.weight)[i], run.remainder[i]);
    case WeightFormat::kFp16:
      return run.master[i];
    case WeightFormat::kFp32:
      return static_cast<const float*>(run.weight)[i];
  }
  FOREBAY_CHECK(false);
}

float WithNanBits(float value) {
  return std::isnan(value) ? std::bit_cast<float>(kNanBits) : value;
}

void StoreWeight(const TileRun& run, int64_t i, float p) {
  switch (run.weights) {
    case WeightFormat::kSplitBf16: {
      const SplitMaster split = Split(WithNanBits(p));
      static_cast<Bf16*>(run.weight)[i] = split.w16;
      run.remainder[i] = split.r16;
      return;
    }
    case WeightFormat::kFp16:
      run.master[i] = p;
      static_cast<Fp16*>(run.weight)[i] = FloatToFp16(p);
      return;
    case WeightFormat::kFp32:
      static_cast<float*>(run.weight)[i] = p;
      return;
  }
}

uint32_t DitherAt(const RuleScalars& s, const TileRun& run, int64_t i) {
  const auto elem = static_cast<uint32_t>(run.first_elem + i);
  const auto in_block = elem % static_cast<uint32_t>(kMomentBlockElems);
  return BlockDither(s.rounding_key, s.rounding_step, elem) + in_block * kDitherOfElem;
}

// Rounds up or down to bf16, up with the probability of how far it is on the way.
Bf16 DitherToBf16(float value, uint32_t dither) {
  return static_cast<Bf16>((std::bit_cast<uint32_t>(WithNanBits(value)) + (dither >> 16)) >> 16);
}

// In [-1/2, 1/2).
float CodeDither(uint32_t dither) {
  return std::bit_cast<float>((dither >> 9) | 0x3f800000u) - 1.5f;
}

// The larger one; NaN if one of them is.
float Larger(float a, float b) {
  return a >= b || std::isnan(a) ? a : b;
}

// The bf16 that is at least `largest`, for a block of which that is the largest magnitude. If one
// value is NaN, so is the scale, and with it the whole block.
uint16_t ScaleOf(float largest) {
  if (std::isnan(largest)) return kNanBits >> 16;
  if (!(largest >= kLeastMomentScale)) return 0;
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(largest) + 0xffffu) >> 16);
}

// The low byte of a code, once it is rounded to a whole number.
uint8_t ByteOf(float code) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(code + kRoundsToWhole));
}

// One block, or the rest of a plane, of moments in memory or in registers.
struct Block {
  float m[kMomentBlockElems] = {};
  float v[kMomentBlockElems] = {};
};

void LoadInt8(const TileRun& run, int64_t first, int64_t num_elems, Block& block) {
  const int64_t b = first / kMomentBlockElems;
  const float m_step =
      run.m != nullptr ? Bf16ToFloat(run.m_scale[b]) * (1.0f / kMostSignedCode) : 0.0f;
  const float y_step =
      run.v != nullptr ? Bf16ToFloat(run.v_scale[b]) * (1.0f / kMostUnsignedCode) : 0.0f;
  for (int64_t i = 0; i < num_elems; ++i) {
    if (run.m != nullptr) {
      block.m[i] = static_cast<float>(static_cast<const int8_t*>(run.m)[first + i]) * m_step;
    }
    if (run.v != nullptr) {
      const float y = static_cast<float>(static_cast<const uint8_t*>(run.v)[first + i]) * y_step;
      block.v[i] = y * y;
    }
  }
}

void StoreInt8M(const RuleScalars& s, const TileRun& run, int64_t first, int64_t num_elems,
                const float* m) {
  float largest = 0;
  for (int64_t i = 0; i < num_elems; ++i) largest = Larger(largest, std::abs(m[i]));
  const uint16_t scale = ScaleOf(largest);
  run.m_scale[first / kMomentBlockElems] = scale;
  const float inverse = scale == 0 ? 0.0f : kMostSignedCode * (1.0f / Bf16ToFloat(scale));
  for (int64_t i = 0; i < num_elems; ++i) {
    const float w = CodeDither(DitherAt(s, run, first + i));
    static_cast<uint8_t*>(run.m)[first + i] = ByteOf(m[i] * inverse + w);
  }
}

void StoreInt8V(const RuleScalars& s, const TileRun& run, int64_t first, int64_t num_elems,
                const float* v) {
  float roots[kMomentBlockElems];
  float largest = 0;
  for (int64_t i = 0; i < num_elems; ++i) {
    roots[i] = std::sqrt(v[i]);
    largest = Larger(largest, roots[i]);
  }
  const uint16_t scale = ScaleOf(largest);
  run.v_scale[first / kMomentBlockElems] = scale;
  const float inverse = scale == 0 ? 0.0f : kMostUnsignedCode * (1.0f / Bf16ToFloat(scale));
  for (int64_t i = 0; i < num_elems; ++i) {
    const float w = CodeDither(DitherAt(s, run, first + i));
    const float least = inverse != 0.0f && v[i] > 0.0f ? 1.0f : 0.0f;
    static_cast<uint8_t*>(run.v)[first + i] = ByteOf(std::max(roots[i] * inverse - w, least));
  }
}

void LoadMoments(const TileRun& run, int64_t first, int64_t num_elems, Block& block) {
  if (run.moments == MomentFormat::kInt8) return LoadInt8(run, first, num_elems, block);
  const auto at = [&](const void* plane, int64_t i) {
    return run.moments == MomentFormat::kFp32
               ? static_cast<const float*>(plane)[first + i]
               : Bf16ToFloat(static_cast<const Bf16*>(plane)[first + i]);
  };
  for (int64_t i = 0; i < num_elems; ++i) {
    if (run.m != nullptr) block.m[i] = at(run.m, i);
    if (run.v != nullptr) block.v[i] = at(run.v, i);
  }
}

void StoreMoments(const RuleScalars& s, const TileRun& run, int64_t first, int64_t num_elems,
                  const Block& block) {
  if (run.moments == MomentFormat::kInt8) {
    if (run.m != nullptr) StoreInt8M(s, run, first, num_elems, block.m);
    if (run.v != nullptr) StoreInt8V(s, run, first, num_elems, block.v);
    return;
  }
  const auto put = [&](void* plane, int64_t i, float value, uint32_t dither) {
    if (plane == nullptr) return;
    if (run.moments == MomentFormat::kFp32) {
      static_cast<float*>(plane)[first + i] = value;
    } else {
      static_cast<Bf16*>(plane)[first + i] = DitherToBf16(value, dither);
    }
  };
  for (int64_t i = 0; i < num_elems; ++i) {
    const uint32_t dither = DitherAt(s, run, first + i);
    put(run.m, i, block.m[i], dither);
    put(run.v, i, block.v[i], ~dither);
  }
}

void UpdateBlocks(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run) {
  for (int64_t first = 0; first < run.num_elems; first += kMomentBlockElems) {
    const int64_t num_elems = std::min(kMomentBlockElems, run.num_elems - first);
    Block block;
    LoadMoments(run, first, num_elems, block);
    for (int64_t i = 0; i < num_elems; ++i) {
      Element e = {LoadWeight(run, first + i), block.m[i], block.v[i]};
      UpdateElement(config, s, GradientAt(run, first + i), e);
      StoreWeight(run, first + i, e.p);
      block.m[i] = e.m;
      block.v[i] = e.v;
    }
    StoreMoments(s, run, first, num_elems, block);
  }
}

void* Advance(void* plane, int64_t bytes) {
  return plane == nullptr ? nullptr : static_cast<std::byte*>(plane) + bytes;
}

}  // namespace

TileRun PartOf(const TileRun& run, int64_t first_elem, int64_t num_elems) {
  FOREBAY_CHECK(run.moments == MomentFormat::kFp32 ||
                (run.first_elem + first_elem) % kMomentBlockElems == 0);
  const int64_t moment_bytes = MomentBytesPerElem(run.moments);
  TileRun part = run;
  part.num_elems = num_elems;
  part.first_elem = run.first_elem + first_elem;
  part.weight = Advance(run.weight, first_elem * WeightBytesPerElem(run.weights));
  if (run.remainder != nullptr) part.remainder = run.remainder + first_elem;
  if (run.master != nullptr) part.master = run.master + first_elem;
  part.m = Advance(run.m, first_elem * moment_bytes);
  part.v = Advance(run.v, first_elem * moment_bytes);
  if (run.m_scale != nullptr) part.m_scale = run.m_scale + first_elem / kMomentBlockElems;
  if (run.v_scale != nullptr) part.v_scale = run.v_scale + first_elem / kMomentBlockElems;
  part.gradient =
      static_cast<const std::byte*>(run.gradient) + first_elem * SizeOf(run.gradient_dtype);
  return part;
}

void UpdateRunRef(const OptimizerConfig& config, const UpdateScalars& scalars, const TileRun& run) {
  CheckRun(config, run);
  UpdateBlocks(config, RuleScalars(config, scalars, run), run);
}

void UpdateRun(const OptimizerConfig& config, const UpdateScalars& scalars, const TileRun& run) {
  CheckRun(config, run);
  const RuleScalars s(config, scalars, run);
  const bool is_adam = config.kind == OptimizerKind::kAdamW || config.kind == OptimizerKind::kAdam;
  const int64_t num_done =
      is_adam ? UpdateAdamSimd(config, s, run) : UpdateOtherSimd(config, s, run);
  // What is left is less than a block: the reference has the same bits.
  UpdateBlocks(config, s, PartOf(run, num_done, run.num_elems - num_done));
}

}  // namespace forebay
