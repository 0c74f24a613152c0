// Update kernels for one instruction set: what a run is made of (weights, moments, gradients), and
// the loop over it. The rules are in update_adam_simd.cc and update_other_simd.cc. Every operation
// is the reference's (rule_scalars.h), so the bits are too. The planes are not written with
// non-temporal stores: each line was just read, so an ordinary store costs no extra traffic.
//
// Included once per target, after hwy/foreach_target.h.
#if defined(FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
#undef FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
#else
#define FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/tile_update.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a block of moments is whole vectors on every target.
using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DH = hn::Rebind<uint16_t, DF>;
using DS = hn::Rebind<int16_t, DF>;
using DB = hn::Rebind<uint8_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

HWY_INLINE int64_t NumLanes() {
  return static_cast<int64_t>(hn::Lanes(DF()));
}

HWY_INLINE VF Bf16At(const uint16_t* from) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(DH(), from))));
}
// Values of at most 16 bits, so the saturation of DemoteTo never acts.
HWY_INLINE void StoreLow16(VU bits, uint16_t* to) {
  hn::StoreU(hn::DemoteTo(DH(), hn::BitCast(DI(), bits)), DH(), to);
}

// As Fp16ToFloat and FloatToFp16 of base/bfloat16.h. Highway's own conversions truncate on some
// targets.
HWY_INLINE VF Fp16At(const uint16_t* from) {
  const DF d;
  const DU du;
  const VU bits = hn::PromoteTo(du, hn::LoadU(DH(), from));
  const VU sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const VU magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const VU is_normal_or_more = hn::Set(du, 0x400u << 13);
  const VU largest_finite = hn::Set(du, (0x7c00u << 13) - 1);
  // 2^-14 with the mantissa below it, less 2^-14: mantissa * 2^-24.
  const VU least = hn::Set(du, 113u << 23);
  const VF subnormal = hn::Sub(hn::BitCast(d, hn::Add(magnitude, least)), hn::BitCast(d, least));
  const VU exponent = hn::IfThenElse(hn::Gt(magnitude, largest_finite), hn::Set(du, 224u << 23),
                                     hn::Set(du, 112u << 23));
  const VU normal = hn::Add(magnitude, exponent);
  const VU result =
      hn::IfThenElse(hn::Lt(magnitude, is_normal_or_more), hn::BitCast(du, subnormal), normal);
  return hn::BitCast(d, hn::Or(result, sign));
}
HWY_INLINE void StoreFp16(VF value, uint16_t* to) {
  const DF d;
  const DU du;
  const VU bits = hn::BitCast(du, value);
  const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const VF half = hn::Set(d, 0.5f);
  const VU subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const VU rounded = hn::Add(magnitude, hn::Add(hn::Set(du, 0xfffu), odd));
  const VU normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  VU result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), subnormal, normal);
  result =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477fefffu)), hn::Set(du, 0x7c00u), result);
  result =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Set(du, 0x7e00u), result);
  StoreLow16(hn::Or(result, sign), to);
}

// What follows keeps copies of what it needs of a run, which the compiler holds in registers: what
// lies in memory might be changed by every store.

// The type is the same for a whole run, so the branch is always predicted.
struct Gradients {
  explicit Gradients(const TileRun& run) : values(run.gradient), dtype(run.gradient_dtype) {}
  HWY_INLINE VF Load(int64_t i) const {
    if (dtype == DType::kF32) return hn::LoadU(DF(), static_cast<const float*>(values) + i);
    const uint16_t* const bits = static_cast<const uint16_t*>(values) + i;
    return dtype == DType::kBF16 ? Bf16At(bits) : Fp16At(bits);
  }
  const void* const values;
  const DType dtype;
};

// ---- Where the fp32 master weight is read from and written to.

struct Fp32Weights {
  explicit Fp32Weights(const TileRun& run) : weight(static_cast<float*>(run.weight)) {}
  HWY_INLINE VF Load(int64_t i) const { return hn::LoadU(DF(), weight + i); }
  HWY_INLINE void Store(int64_t i, VF p) const { hn::StoreU(p, DF(), weight + i); }
  float* const weight;
};

struct Fp16Weights {
  explicit Fp16Weights(const TileRun& run)
      : weight(static_cast<uint16_t*>(run.weight)), master(run.master) {}
  HWY_INLINE VF Load(int64_t i) const { return hn::LoadU(DF(), master + i); }
  HWY_INLINE void Store(int64_t i, VF p) const {
    hn::StoreU(p, DF(), master + i);
    StoreFp16(p, weight + i);
  }
  uint16_t* const weight;
  float* const master;
};

// As Join and Split of base/bfloat16.h.
struct SplitWeights {
  explicit SplitWeights(const TileRun& run)
      : w16(static_cast<uint16_t*>(run.weight)), r16(run.remainder) {}
  HWY_INLINE VF Load(int64_t i) const {
    const DU du;
    const VU high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(DH(), w16 + i)));
    const VU low = hn::BitCast(du, hn::PromoteTo(DI(), hn::LoadU(DS(), r16 + i)));
    return hn::BitCast(DF(), hn::Add(high, low));
  }
  HWY_INLINE void Store(int64_t i, VF p) const {
    const DU du;
    const VU bits = hn::BitCast(du, p);
    const VU high = hn::ShiftRight<16>(hn::Add(bits, hn::Set(du, 0x8000u)));
    StoreLow16(high, w16 + i);
    const auto low = hn::BitCast(DI(), hn::Sub(bits, hn::ShiftLeft<16>(high)));
    hn::StoreU(hn::DemoteTo(DS(), low), DS(), r16 + i);
  }
  uint16_t* const w16;
  int16_t* const r16;
};

// ---- Moments: LoadM and LoadV of a vector; StoreM, StoreV or, of both, Store; and what goes
// around each block. `root` is sqrt(v).

// Which vector: of the run, and of its block.
struct At {
  int64_t i;
  int64_t in_block;
};

struct Fp32Moments {
  Fp32Moments(const RuleScalars&, const TileRun& run)
      : m(static_cast<float*>(run.m)), v(static_cast<float*>(run.v)) {}
  HWY_INLINE void Begin(int64_t /*first*/) {}
  HWY_INLINE void End(int64_t /*first*/) {}
  HWY_INLINE void Finish() {}
  HWY_INLINE VF LoadM(At at) const { return hn::LoadU(DF(), m + at.i); }
  HWY_INLINE VF LoadV(At at) const { return hn::LoadU(DF(), v + at.i); }
  HWY_INLINE void StoreM(At at, VF value) { hn::StoreU(value, DF(), m + at.i); }
  HWY_INLINE void StoreV(At at, VF value, VF /*root*/) { hn::StoreU(value, DF(), v + at.i); }
  HWY_INLINE void Store(At at, VF first, VF second, VF root) {
    StoreM(at, first);
    StoreV(at, second, root);
  }
  float* const m;
  float* const v;
};

// The dither of a run's elements: Begin takes the hash of a block, Of adds what its elements have.
struct Dither {
  Dither(const RuleScalars& s, const TileRun& run)
      : first_elem_(static_cast<uint32_t>(run.first_elem)),
        key_(s.rounding_key),
        step_(s.rounding_step) {}
  HWY_INLINE void Begin(int64_t first) {
    of_block_ = BlockDither(key_, step_, first_elem_ + static_cast<uint32_t>(first));
  }
  HWY_INLINE VU Of(int64_t in_block) const {
    const DU du;
    return hn::Add(hn::Load(du, kDitherOfElems.data() + in_block), hn::Set(du, of_block_));
  }

 private:
  const uint32_t first_elem_;
  const uint32_t key_;
  const uint32_t step_;
  uint32_t of_block_ = 0;
};

struct Bf16Moments {
  Bf16Moments(const RuleScalars& s, const TileRun& run)
      : dither_(s, run), m_(static_cast<uint16_t*>(run.m)), v_(static_cast<uint16_t*>(run.v)) {}
  HWY_INLINE void Begin(int64_t first) { dither_.Begin(first); }
  HWY_INLINE void End(int64_t /*first*/) {}
  HWY_INLINE void Finish() {}
  HWY_INLINE VF LoadM(At at) const { return Bf16At(m_ + at.i); }
  HWY_INLINE VF LoadV(At at) const { return Bf16At(v_ + at.i); }
  HWY_INLINE void StoreM(At at, VF value) {
    StoreDithered(value, dither_.Of(at.in_block), m_ + at.i);
  }
  HWY_INLINE void StoreV(At at, VF value, VF /*root*/) {
    StoreDithered(value, hn::Not(dither_.Of(at.in_block)), v_ + at.i);
  }
  HWY_INLINE void Store(At at, VF first, VF second, VF /*root*/) {
    const VU of_first = dither_.Of(at.in_block);
    StoreDithered(first, of_first, m_ + at.i);
    StoreDithered(second, hn::Not(of_first), v_ + at.i);
  }

 private:
  static HWY_INLINE void StoreDithered(VF value, VU of_value, uint16_t* to) {
    const VU sum = hn::Add(hn::BitCast(DU(), value), hn::ShiftRight<16>(of_value));
    StoreLow16(hn::ShiftRight<16>(sum), to);
  }
  Dither dither_;
  uint16_t* const m_;
  uint16_t* const v_;
};

// A block's values wait in the cache until its largest is known. They are encoded while the block
// after it is updated, vector by vector: one keeps the divider busy, the other everything else.
template <bool kHasM, bool kHasV>
struct Int8Moments {
  Int8Moments(const RuleScalars& s, const TileRun& run)
      : dither_(s, run),
        m_(static_cast<uint8_t*>(run.m)),
        v_(static_cast<uint8_t*>(run.v)),
        m_scale_(run.m_scale),
        v_scale_(run.v_scale) {}

  HWY_INLINE void Begin(int64_t first) {
    const int64_t block = first / kMomentBlockElems;
    if constexpr (kHasM) m_step_ = ScaleAt(m_scale_ + block) * (1.0f / kMostSignedCode);
    if constexpr (kHasV) y_step_ = ScaleAt(v_scale_ + block) * (1.0f / kMostUnsignedCode);
  }
  HWY_INLINE VF LoadM(At at) const {
    const auto codes = hn::BitCast(hn::Rebind<int8_t, DF>(), hn::LoadU(DB(), m_ + at.i));
    return hn::Mul(hn::ConvertTo(DF(), hn::PromoteTo(DI(), codes)), hn::Set(DF(), m_step_));
  }
  HWY_INLINE VF LoadV(At at) const {
    const auto codes = hn::LoadU(DB(), v_ + at.i);
    const VF y = hn::Mul(hn::ConvertTo(DF(), hn::PromoteTo(DI(), codes)), hn::Set(DF(), y_step_));
    return hn::Mul(y, y);
  }
  HWY_INLINE void StoreM(At at, VF value) {
    hn::Store(value, DF(), now_->m + at.in_block);
    EncodeBefore(at.in_block);
  }
  HWY_INLINE void StoreV(At at, VF /*value*/, VF root) {
    hn::Store(root, DF(), now_->y + at.in_block);
    EncodeBefore(at.in_block);
  }
  HWY_INLINE void Store(At at, VF first, VF /*second*/, VF root) {
    hn::Store(first, DF(), now_->m + at.in_block);
    hn::Store(root, DF(), now_->y + at.in_block);
    EncodeBefore(at.in_block);
  }
  HWY_INLINE void End(int64_t first) {
    const int64_t block = first / kMomentBlockElems;
    now_->first = first;
    if constexpr (kHasM) now_->m_inverse = kMostSignedCode * InverseOf(now_->m, m_scale_ + block);
    if constexpr (kHasV) {
      const float inverse = InverseOf(now_->y, v_scale_ + block);
      now_->y_inverse = kMostUnsignedCode * inverse;
      now_->least_y_code = inverse == 0.0f ? 0.0f : 1.0f;
    }
    dither_.Begin(first);
    std::swap(now_, before_);
  }
  HWY_INLINE void Finish() {
    for (int64_t i = 0; i < kMomentBlockElems; i += NumLanes()) EncodeBefore(i);
  }

 private:
  struct Block {
    int64_t first = -1;  // of the run; -1: none
    float m_inverse = 0;
    float y_inverse = 0;
    float least_y_code = 0;  // where y is not 0
    HWY_ALIGN float m[kMomentBlockElems];
    HWY_ALIGN float y[kMomentBlockElems];  // sqrt(v)
  };

  // One vector of the block before the one that is being updated; `dither_` is that block's.
  HWY_INLINE void EncodeBefore(int64_t in_block) {
    const DF d;
    const DU du;
    if (before_->first < 0) return;
    const int64_t to = before_->first + in_block;
    const VU fraction = hn::ShiftRight<9>(dither_.Of(in_block));
    const VF u = hn::BitCast(d, hn::Or(fraction, hn::BitCast(du, hn::Set(d, 1.0f))));
    const VF w = hn::Sub(u, hn::Set(d, 1.5f));
    if constexpr (kHasM) {
      const VF scaled = hn::Mul(hn::Load(d, before_->m + in_block), hn::Set(d, before_->m_inverse));
      StoreCodes(hn::Add(scaled, w), m_ + to);
    }
    if constexpr (kHasV) {
      const VF y = hn::Load(d, before_->y + in_block);
      const VF scaled = hn::Mul(y, hn::Set(d, before_->y_inverse));
      const VF least =
          hn::IfThenElseZero(hn::Gt(y, hn::Zero(d)), hn::Set(d, before_->least_y_code));
      StoreCodes(hn::Max(hn::Sub(scaled, w), least), v_ + to);
    }
  }
  static HWY_INLINE void StoreCodes(VF code, uint8_t* to) {
    const VU bits = hn::BitCast(DU(), hn::Add(code, hn::Set(DF(), kRoundsToWhole)));
    hn::StoreU(hn::TruncateTo(DB(), bits), DB(), to);
  }
  static float ScaleAt(const uint16_t* scale) {
    return std::bit_cast<float>(static_cast<uint32_t>(*scale) << 16);
  }
  // Stores ScaleOf (of the reference) of a block's magnitudes and returns its inverse; 0: of 0.
  static HWY_INLINE float InverseOf(const float* values, uint16_t* scale) {
    const DF d;
    VF largest = hn::Zero(d);
    for (int64_t i = 0; i < kMomentBlockElems; i += NumLanes()) {
      largest = hn::Max(largest, hn::Abs(hn::Load(d, values + i)));
    }
    const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (!(most >= kLeastMomentScale)) {
      *scale = 0;
      return 0.0f;
    }
    const uint32_t rounded_up = (std::bit_cast<uint32_t>(most) + 0xffffu) & 0xffff0000u;
    *scale = static_cast<uint16_t>(rounded_up >> 16);
    return 1.0f / std::bit_cast<float>(rounded_up);
  }

  Dither dither_;
  uint8_t* const m_;  // of int8_t
  uint8_t* const v_;
  uint16_t* const m_scale_;
  uint16_t* const v_scale_;
  float m_step_ = 0;
  float y_step_ = 0;
  Block blocks_[2];
  Block* now_ = &blocks_[0];  // being updated
  Block* before_ = &blocks_[1];
};

// ---- The loop. Updates whole blocks and returns how many elements that was. `rule` is called as
// rule(moments, at, p, g) and returns the new weight.
template <typename Rule, typename Weights, typename Moments>
int64_t UpdateBlocks(const RuleScalars& s, const TileRun& run, const Rule& the_rule) {
  const Rule rule = the_rule;
  const Weights weights(run);
  const Gradients gradients(run);
  Moments moments(s, run);
  const int64_t num_elems = run.num_elems;
  const VF gradient_scale = hn::Set(DF(), s.gradient_scale);
  int64_t first = 0;
  for (; first + kMomentBlockElems <= num_elems; first += kMomentBlockElems) {
    moments.Begin(first);
    for (int64_t in_block = 0; in_block < kMomentBlockElems; in_block += NumLanes()) {
      const int64_t i = first + in_block;
      const VF g = hn::Mul(gradients.Load(i), gradient_scale);
      weights.Store(i, rule(moments, At{i, in_block}, weights.Load(i), g));
    }
    moments.End(first);
  }
  moments.Finish();
  return first;
}

template <typename Rule>
int64_t UpdateWith(const RuleScalars& s, const TileRun& run, const Rule& rule) {
  if (run.moments == MomentFormat::kBf16) {
    return UpdateBlocks<Rule, SplitWeights, Bf16Moments>(s, run, rule);
  }
  if (run.moments == MomentFormat::kInt8) {
    using Moments = Int8Moments<Rule::kHasM, Rule::kHasV>;
    return UpdateBlocks<Rule, SplitWeights, Moments>(s, run, rule);
  }
  switch (run.weights) {
    case WeightFormat::kSplitBf16:
      return UpdateBlocks<Rule, SplitWeights, Fp32Moments>(s, run, rule);
    case WeightFormat::kFp16:
      return UpdateBlocks<Rule, Fp16Weights, Fp32Moments>(s, run, rule);
    case WeightFormat::kFp32:
      return UpdateBlocks<Rule, Fp32Weights, Fp32Moments>(s, run, rule);
  }
  return 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#endif  // FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
