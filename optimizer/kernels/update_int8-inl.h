// Update kernels of 8-bit moments, for one instruction set: a group of blocks at a time, in passes.
// In one pass, block by block, moments would wait for their block's scale and weights for their
// moments, and no processor looks far enough ahead to fill the time with the next blocks.
//
// Included once per target, after hwy/foreach_target.h.
#if defined(FOREBAY_OPTIMIZER_KERNELS_UPDATE_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOREBAY_OPTIMIZER_KERNELS_UPDATE_INT8_INL_H_
#undef FOREBAY_OPTIMIZER_KERNELS_UPDATE_INT8_INL_H_
#else
#define FOREBAY_OPTIMIZER_KERNELS_UPDATE_INT8_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "forebay/optimizer/kernels/update_planes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using DBytesOfLanes = hn::Repartition<uint8_t, DF>;

// What is kept of a group from pass to pass, two vectors InTurn after one another. Each block has
// two scales, of its first and of its second moments.
struct Int8Group {
  static constexpr int64_t kNumElems = 16 * kMomentBlockElems;
  static constexpr int64_t kNumScales = 2 * kNumElems / kMomentBlockElems;
  HWY_ALIGN float m[kNumElems];
  HWY_ALIGN float y[kNumElems];  // sqrt(v)
  HWY_ALIGN float along[kNumElems];
  HWY_ALIGN float largest[kNumScales] = {};  // 0, too, where a run has no such block
  HWY_ALIGN float scale[kNumScales];
  HWY_ALIGN float codes[kNumScales];  // of a magnitude of 1
};
// Where the scales of an element's block are.
HWY_INLINE int64_t ScalesOf(int64_t in_group) {
  return in_group / kMomentBlockElems * 2;
}

// The most codes, as Int8Group has scales.
alignas(64) constexpr auto kMostCodes = [] {
  std::array<float, Int8Group::kNumScales> codes{};
  for (size_t i = 0; i < codes.size(); i += 2) {
    codes[i] = kMostSignedCode;
    codes[i + 1] = kMostUnsignedCode;
  }
  return codes;
}();

// The codes and scales in memory.
template <bool kHasM, bool kHasV>
struct Int8Moments {
  explicit Int8Moments(const TileRun& run)
      : m(static_cast<uint8_t*>(run.m)),
        v(static_cast<uint8_t*>(run.v)),
        m_scale(run.m_scale),
        v_scale(run.v_scale) {}

  // What the code 1 is worth in the block of `i`.
  HWY_INLINE float MStep(int64_t i) const {
    return kHasM ? ScaleAt(m_scale + i / kMomentBlockElems) * (1.0f / kMostSignedCode) : 0.0f;
  }
  HWY_INLINE float YStep(int64_t i) const {
    return kHasV ? ScaleAt(v_scale + i / kMomentBlockElems) * (1.0f / kMostUnsignedCode) : 0.0f;
  }
  template <int kWhich>
  HWY_INLINE VF M(int64_t i, float step) const {
    if constexpr (!kHasM) return hn::Zero(DF());
    const hn::RebindToSigned<DBytes> d8;
    const hn::RebindToSigned<DHalves> d16;
    const auto bytes = hn::BitCast(d8, hn::LoadU(DBytes(), m + i));
    const auto both = hn::BitCast(DI(), hn::PromoteTo(d16, bytes));
    const auto codes = hn::ShiftRight<16>(kWhich == 0 ? hn::ShiftLeft<16>(both) : both);
    return hn::Mul(hn::ConvertTo(DF(), codes), hn::Set(DF(), step));
  }
  template <int kWhich>
  HWY_INLINE VF V(int64_t i, float step) const {
    if constexpr (!kHasV) return hn::Zero(DF());
    const DU du;
    const VU both = hn::BitCast(du, hn::PromoteTo(DHalves(), hn::LoadU(DBytes(), v + i)));
    const VU codes = kWhich == 0 ? hn::And(both, hn::Set(du, 0xffffu)) : hn::ShiftRight<16>(both);
    const VF y = hn::Mul(hn::ConvertTo(DF(), hn::BitCast(DI(), codes)), hn::Set(DF(), step));
    return hn::Mul(y, y);
  }
  HWY_INLINE void StoreScales(int64_t i, const float* scales) const {
    if constexpr (kHasM) StoreScale(scales[0], m_scale + i / kMomentBlockElems);
    if constexpr (kHasV) StoreScale(scales[1], v_scale + i / kMomentBlockElems);
  }
  // Stores the low bytes of two vectors InTurn.
  static HWY_INLINE void StoreCodes(VU codes0, VU codes1, uint8_t* to) {
    const DBytesOfLanes d;
    const auto odd = hn::BitCast(d, hn::ShiftLeft<8>(codes1));
    const VU low_halves = hn::BitCast(DU(), hn::OddEven(odd, hn::BitCast(d, codes0)));
    hn::StoreU(hn::BitCast(DBytes(), hn::TruncateTo(DH(), low_halves)), DBytes(), to);
  }

  uint8_t* const m;  // of int8_t
  uint8_t* const v;
  uint16_t* const m_scale;
  uint16_t* const v_scale;

 private:
  static HWY_INLINE float ScaleAt(const uint16_t* scale) {
    return std::bit_cast<float>(static_cast<uint32_t>(*scale) << 16);
  }
  static HWY_INLINE void StoreScale(float scale, uint16_t* to) {
    *to = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
  }
};

template <typename Rule>
class Int8Update {
 public:
  Int8Update(const RuleScalars& s, const TileRun& run, const Rule& rule)
      : rule_(rule), gradients_(s, run), weights_(run), moments_(run), dither_(s, run) {}

  // Whole blocks, from `first` of the run.
  HWY_INLINE void UpdateGroup(int64_t first, int64_t num_elems, Int8Group& group) {
    for (int64_t i = 0; i < num_elems; i += kMomentBlockElems) UpdateMoments(first + i, i, group);
    for (int64_t i = 0; i < num_elems; i += kMomentBlockElems) FindLargest(i, group);
    FindScales(group);
    for (int64_t i = 0; i < num_elems; i += kMomentBlockElems) UpdateWeights(first + i, i, group);
    for (int64_t i = 0; i < num_elems; i += kMomentBlockElems) Encode(first + i, i, group);
  }

 private:
  static constexpr bool kHasM = Rule::kHasM;
  static constexpr bool kHasV = Rule::kHasV;

  // ---- The passes over a block, which begins at `first` of the run and at `i` of the group.

  HWY_INLINE void UpdateMoments(int64_t first, int64_t i, Int8Group& group) const {
    const float m_step = moments_.MStep(first);
    const float y_step = moments_.YStep(first);
    for (const int64_t end = i + kMomentBlockElems; i < end;
         i += 2 * NumLanes(), first += 2 * NumLanes()) {
      UpdateMomentsOf<0>(first, i, m_step, y_step, group);
      UpdateMomentsOf<1>(first, i, m_step, y_step, group);
    }
  }
  template <int kWhich>
  HWY_INLINE void UpdateMomentsOf(int64_t first, int64_t i, float m_step, float y_step,
                                  Int8Group& group) const {
    const DF d;
    VF m = moments_.template M<kWhich>(first, m_step);
    VF v = moments_.template V<kWhich>(first, y_step);
    VF root = v;
    const VF along = rule_.Moments(gradients_.template Load<kWhich>(first),
                                   weights_.template Load<kWhich>(first), m, v, root);
    hn::Store(along, d, group.along + i + kWhich * NumLanes());
    if constexpr (kHasM) hn::Store(m, d, group.m + i + kWhich * NumLanes());
    if constexpr (kHasV) hn::Store(root, d, group.y + i + kWhich * NumLanes());
  }

  HWY_INLINE void UpdateWeights(int64_t first, int64_t i, Int8Group& group) const {
    for (const int64_t end = i + kMomentBlockElems; i < end;
         i += 2 * NumLanes(), first += 2 * NumLanes()) {
      weights_.Store(first, NewWeight<0>(first, i, group), NewWeight<1>(first, i, group));
    }
  }
  template <int kWhich>
  HWY_INLINE VF NewWeight(int64_t first, int64_t i, const Int8Group& group) const {
    const DF d;
    const VF along = hn::Load(d, group.along + i + kWhich * NumLanes());
    const VF root = kHasV ? hn::Load(d, group.y + i + kWhich * NumLanes()) : along;
    return rule_.Weight(weights_.template Load<kWhich>(first), along, root);
  }

  HWY_INLINE void Encode(int64_t first, int64_t i, const Int8Group& group) {
    const DF d;
    moments_.StoreScales(first, group.scale + ScalesOf(i));
    const VF m_codes = hn::Set(d, group.codes[ScalesOf(i)]);
    const VF y_codes = hn::Set(d, group.codes[ScalesOf(i) + 1]);
    dither_.BeginBlock(first);
    for (int64_t in_block = 0; in_block < kMomentBlockElems; in_block += 2 * NumLanes()) {
      const VF w0 = CodeDither<0>(in_block);
      const VF w1 = CodeDither<1>(in_block);
      const float* const m = group.m + i + in_block;
      const float* const y = group.y + i + in_block;
      if constexpr (kHasM) {
        moments_.StoreCodes(MCodes(m, m_codes, w0), MCodes(m + NumLanes(), m_codes, w1),
                            moments_.m + first + in_block);
      }
      if constexpr (kHasV) {
        moments_.StoreCodes(YCodes(y, y_codes, w0), YCodes(y + NumLanes(), y_codes, w1),
                            moments_.v + first + in_block);
      }
    }
  }

  // ---- Scales.

  // The largest magnitudes of a block, of m and of y. Magnitudes compare as their bits do.
  static HWY_INLINE void FindLargest(int64_t i, Int8Group& group) {
    const DU d;
    VU of_m = hn::Zero(d);
    VU of_y = hn::Zero(d);
    if constexpr (kHasM) of_m = LargestOf(group.m + i, hn::Set(d, 0x7fffffffu));
    if constexpr (kHasV) of_y = LargestOf(group.y + i, hn::Set(d, 0xffffffffu));
    float* const largest = group.largest + ScalesOf(i);
    if constexpr (HWY_HAVE_SCALABLE) {
      largest[0] = hn::GetLane(hn::BitCast(DF(), hn::MaxOfLanes(d, of_m)));
      largest[1] = hn::GetLane(hn::BitCast(DF(), hn::MaxOfLanes(d, of_y)));
    } else {
      const hn::CappedTag<float, 2> pair;
      const VU pairs =
          hn::Max(hn::InterleaveLower(d, of_m, of_y), hn::InterleaveUpper(d, of_m, of_y));
      hn::Store(hn::BitCast(pair, LargestPair(d, pairs)), pair, largest);
    }
  }
  static HWY_INLINE VU LargestOf(const float* values, VU mask) {
    const DU d;
    VU largest = hn::And(hn::BitCast(d, hn::Load(DF(), values)), mask);
    for (int64_t i = NumLanes(); i < kMomentBlockElems; i += NumLanes()) {
      largest = hn::Max(largest, hn::And(hn::BitCast(d, hn::Load(DF(), values + i)), mask));
    }
    return largest;
  }
  template <class D>
  static HWY_INLINE auto LargestPair(D d, hn::Vec<D> pairs) {
    if constexpr (hn::MaxLanes(d) == 2) {
      return pairs;
    } else {
      const hn::Half<D> half;
      return LargestPair(half, hn::Max(hn::LowerHalf(half, pairs), hn::UpperHalf(half, pairs)));
    }
  }
  // As the reference's ScaleOf.
  static HWY_INLINE void FindScales(Int8Group& group) {
    const DF d;
    const DU du;
    for (int64_t i = 0; i < Int8Group::kNumScales; i += NumLanes()) {
      const VF largest = hn::Load(d, group.largest + i);
      const auto has_scale = hn::Ge(largest, hn::Set(d, kLeastMomentScale));
      const VU above = hn::Add(hn::BitCast(du, largest), hn::Set(du, 0xffffu));
      const VF scale = hn::BitCast(d, hn::And(above, hn::Set(du, 0xffff0000u)));
      const VF inverse = hn::Div(hn::Set(d, 1.0f), scale);
      const VF codes = hn::Mul(hn::Load(d, kMostCodes.data() + i), inverse);
      const VF or_nan = hn::IfThenElse(hn::IsNaN(largest), hn::BitCast(d, hn::Set(du, kNanBits)),
                                       hn::IfThenElseZero(has_scale, scale));
      hn::Store(or_nan, d, group.scale + i);
      hn::Store(hn::IfThenElseZero(has_scale, codes), d, group.codes + i);
    }
  }

  // ---- Codes.

  // In 2^-32; its low 9 bits are 0, so that a float holds it.
  template <int kWhich>
  HWY_INLINE VF CodeDither(int64_t in_block) const {
    const DU d;
    const VU centered = hn::Sub(dither_.template Of<kWhich>(in_block), hn::Set(d, 0x80000000u));
    const VU rounded = hn::And(centered, hn::Set(d, 0xfffffe00u));
    return hn::ConvertTo(DF(), hn::BitCast(DI(), rounded));
  }
  // The products with 2^-32 are exact, so that it is the same whether sums are fused with them.
  static HWY_INLINE VU MCodes(const float* m, VF codes, VF w) {
    const DF d;
    return WholeOf(hn::MulAdd(w, hn::Set(d, 0x1p-32f), hn::Mul(hn::Load(d, m), codes)));
  }
  // At least 1 where y is not 0; the root of a float that is not 0 is far above kLeastMomentScale,
  // so then there is a scale too.
  static HWY_INLINE VU YCodes(const float* y, VF codes, VF w) {
    const DF d;
    const DU du;
    const VF root = hn::Load(d, y);
    const VF code = hn::NegMulAdd(w, hn::Set(d, 0x1p-32f), hn::Mul(root, codes));
    const VU one_or_zero = hn::Min(hn::BitCast(du, root), hn::Set(du, 1));
    const VU zero_code = hn::BitCast(du, hn::Set(d, kRoundsToWhole));
    return hn::Max(WholeOf(code), hn::Add(one_or_zero, zero_code));
  }
  // In the low byte.
  static HWY_INLINE VU WholeOf(VF code) {
    return hn::BitCast(DU(), hn::Add(code, hn::Set(DF(), kRoundsToWhole)));
  }

  const Rule rule_;
  const Gradients<InTurn> gradients_;
  const SplitWeights<InTurn> weights_;
  const Int8Moments<kHasM, kHasV> moments_;
  Dither dither_;
};

// Updates whole blocks and returns how many elements that was.
template <typename Rule>
int64_t UpdateInt8Blocks(const RuleScalars& s, const TileRun& run, const Rule& rule) {
  Int8Update<Rule> update(s, run, rule);
  Int8Group group;
  const int64_t num_elems = run.num_elems / kMomentBlockElems * kMomentBlockElems;
  for (int64_t first = 0; first < num_elems; first += Int8Group::kNumElems) {
    update.UpdateGroup(first, std::min(Int8Group::kNumElems, num_elems - first), group);
  }
  return num_elems;
}

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#endif  // FOREBAY_OPTIMIZER_KERNELS_UPDATE_INT8_INL_H_
