// Update kernels for one instruction set: a rule's loop over a run. The rules are in
// update_adam_simd.cc and update_other_simd.cc, 8-bit moments in update_int8-inl.h.
//
// A rule has, for what it updates:
//   VF Moments(VF g, VF p, VF& m, VF& v, VF& root)   updates m and v, those that it has, and puts
//                                                    sqrt(v) into root; returns what the weight is
//                                                    moved along
//   VF Weight(VF p, VF along, VF root)               the new weight
//
// Included once per target, after hwy/foreach_target.h.
#if defined(FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
#undef FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
#else
#define FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
#endif

#include <cstdint>

#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "forebay/optimizer/kernels/update_int8-inl.h"
#include "forebay/optimizer/kernels/update_planes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// A CPU without vectors: the reference does everything, as it does the rest of a vector kernel.
template <typename Rule>
int64_t UpdateWith(const RuleScalars&, const TileRun&, const Rule&) {
  return 0;
}

#else

// ---- Moments: M and V load a vector, Store stores both vectors of both.

// Where two vectors begin: in the run, and in their block.
struct At {
  int64_t i;
  int64_t in_block;
};

template <bool kHasM, bool kHasV>
struct Fp32Moments {
  Fp32Moments(const RuleScalars&, const TileRun& run)
      : m(static_cast<float*>(run.m)), v(static_cast<float*>(run.v)) {}
  HWY_INLINE void BeginBlock(int64_t /*first*/) {}
  template <int kWhich>
  HWY_INLINE VF M(At at) const {
    return kHasM ? InOrder::Floats<kWhich>(m + at.i) : hn::Zero(DF());
  }
  template <int kWhich>
  HWY_INLINE VF V(At at) const {
    return kHasV ? InOrder::Floats<kWhich>(v + at.i) : hn::Zero(DF());
  }
  HWY_INLINE void Store(At at, VF m0, VF m1, VF v0, VF v1) {
    if constexpr (kHasM) {
      hn::StoreU(m0, DF(), m + at.i);
      hn::StoreU(m1, DF(), m + at.i + NumLanes());
    }
    if constexpr (kHasV) {
      hn::StoreU(v0, DF(), v + at.i);
      hn::StoreU(v1, DF(), v + at.i + NumLanes());
    }
  }
  float* const m;
  float* const v;
};

template <bool kHasM, bool kHasV>
struct Bf16Moments {
  Bf16Moments(const RuleScalars& s, const TileRun& run)
      : dither_(s, run), m_(static_cast<uint16_t*>(run.m)), v_(static_cast<uint16_t*>(run.v)) {}
  HWY_INLINE void BeginBlock(int64_t first) { dither_.BeginBlock(first); }
  template <int kWhich>
  HWY_INLINE VF M(At at) const {
    return kHasM ? hn::BitCast(DF(), InTurn::High<kWhich>(m_ + at.i)) : hn::Zero(DF());
  }
  template <int kWhich>
  HWY_INLINE VF V(At at) const {
    return kHasV ? hn::BitCast(DF(), InTurn::High<kWhich>(v_ + at.i)) : hn::Zero(DF());
  }
  HWY_INLINE void Store(At at, VF m0, VF m1, VF v0, VF v1) {
    const VU dither0 = hn::ShiftRight<16>(dither_.Of<0>(at.in_block));
    const VU dither1 = hn::ShiftRight<16>(dither_.Of<1>(at.in_block));
    if constexpr (kHasM) InTurn::StoreHigh(Sum(m0, dither0), Sum(m1, dither1), m_ + at.i);
    if constexpr (kHasV) {
      const VU most = hn::Set(DU(), 0xffffu);
      const VU complement0 = hn::Xor(dither0, most);
      const VU complement1 = hn::Xor(dither1, most);
      InTurn::StoreHigh(Sum(v0, complement0), Sum(v1, complement1), v_ + at.i);
    }
  }

 private:
  static HWY_INLINE VU Sum(VF value, VU dither) { return hn::Add(BitsWithNan(value), dither); }
  Dither dither_;
  uint16_t* const m_;
  uint16_t* const v_;
};

// ---- The loop. Updates whole blocks and returns how many elements that was.
template <typename Rule, typename Weights, typename Moments>
int64_t UpdateBlocks(const RuleScalars& s, const TileRun& run, const Rule& the_rule) {
  const Rule rule = the_rule;
  const Weights weights(run);
  const Gradients<typename Weights::Order> gradients(s, run);
  Moments moments(s, run);
  const int64_t num_elems = run.num_elems;
  int64_t first = 0;
  for (; first + kMomentBlockElems <= num_elems; first += kMomentBlockElems) {
    moments.BeginBlock(first);
    for (int64_t in_block = 0; in_block < kMomentBlockElems; in_block += 2 * NumLanes()) {
      const At at = {first + in_block, in_block};
      const VF p0 = weights.template Load<0>(at.i);
      const VF p1 = weights.template Load<1>(at.i);
      const VF g0 = gradients.template Load<0>(at.i);
      const VF g1 = gradients.template Load<1>(at.i);
      VF m0 = moments.template M<0>(at);
      VF m1 = moments.template M<1>(at);
      VF v0 = moments.template V<0>(at);
      VF v1 = moments.template V<1>(at);
      VF root0 = v0;
      VF root1 = v1;
      const VF along0 = rule.Moments(g0, p0, m0, v0, root0);
      const VF along1 = rule.Moments(g1, p1, m1, v1, root1);
      weights.Store(at.i, rule.Weight(p0, along0, root0), rule.Weight(p1, along1, root1));
      moments.Store(at, m0, m1, v0, v1);
    }
  }
  return first;
}

template <typename Rule>
int64_t UpdateWith(const RuleScalars& s, const TileRun& run, const Rule& rule) {
  using Exact = Fp32Moments<Rule::kHasM, Rule::kHasV>;
  using Bf16 = Bf16Moments<Rule::kHasM, Rule::kHasV>;
  if (run.moments == MomentFormat::kInt8) return UpdateInt8Blocks(s, run, rule);
  if (run.moments == MomentFormat::kBf16) {
    return UpdateBlocks<Rule, SplitWeights<InTurn>, Bf16>(s, run, rule);
  }
  switch (run.weights) {
    case WeightFormat::kSplitBf16:
      return UpdateBlocks<Rule, SplitWeights<InOrder>, Exact>(s, run, rule);
    case WeightFormat::kFp16:
      return UpdateBlocks<Rule, Fp16Weights, Exact>(s, run, rule);
    case WeightFormat::kFp32:
      return UpdateBlocks<Rule, Fp32Weights, Exact>(s, run, rule);
  }
  return 0;
}

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#endif  // FOREBAY_OPTIMIZER_KERNELS_UPDATE_SIMD_INL_H_
