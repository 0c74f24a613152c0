// What update kernels read and write, for one instruction set: the planes of gradients and weights,
// two vectors at a time, and the dither of moments. Every operation is the reference's
// (rule_scalars.h), so the bits are too. The planes are not written with non-temporal stores: each
// line was just read, so an ordinary store costs no extra traffic.
//
// Included once per target, after hwy/foreach_target.h.
#if defined(FOREBAY_OPTIMIZER_KERNELS_UPDATE_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOREBAY_OPTIMIZER_KERNELS_UPDATE_PLANES_INL_H_
#undef FOREBAY_OPTIMIZER_KERNELS_UPDATE_PLANES_INL_H_
#else
#define FOREBAY_OPTIMIZER_KERNELS_UPDATE_PLANES_INL_H_
#endif

#include <cstdint>

#include "forebay/base/fp16-inl.h"
#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a block of moments is whole pairs of vectors on every target.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

#if HWY_TARGET != HWY_SCALAR

using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VU = hn::Vec<DU>;
// A 16-bit value of each lane.
using DH = hn::Rebind<uint16_t, DF>;
// The 16-bit halves of a vector's lanes, and as many bytes as there are of those.
using DHalves = hn::Repartition<uint16_t, DF>;
using DBytes = hn::Rebind<uint8_t, DHalves>;

HWY_INLINE int64_t NumLanes() {
  return static_cast<int64_t>(hn::Lanes(DF()));
}

// ---- Elements are updated two vectors at a time, number 0 and number 1, so that where planes have
// 16 bits an element, whole vectors are loaded and stored. In which order they lie in memory:

// First those of vector 0, then those of vector 1.
struct InOrder {
  template <int kWhich>
  static HWY_INLINE VF Floats(const float* from) {
    return hn::LoadU(DF(), from + kWhich * NumLanes());
  }
  // 16 bits, in the low or in the high half of a lane; the other half is 0.
  template <int kWhich>
  static HWY_INLINE VU Low(const uint16_t* from) {
    return hn::PromoteTo(DU(), hn::LoadU(DH(), from + kWhich * NumLanes()));
  }
  template <int kWhich>
  static HWY_INLINE VU Signed(const uint16_t* from) {
    const auto bits = hn::LoadU(DH(), from + kWhich * NumLanes());
    return hn::BitCast(DU(), hn::PromoteTo(DI(), hn::BitCast(hn::RebindToSigned<DH>(), bits)));
  }
  template <int kWhich>
  static HWY_INLINE VU High(const uint16_t* from) {
    return hn::ShiftLeft<16>(Low<kWhich>(from));
  }
  // The low or the high halves of both vectors' lanes.
  static HWY_INLINE void StoreLow(VU v0, VU v1, uint16_t* to) {
    const DHalves d;
    hn::StoreU(hn::ConcatEven(d, hn::BitCast(d, v1), hn::BitCast(d, v0)), d, to);
  }
  static HWY_INLINE void StoreHigh(VU v0, VU v1, uint16_t* to) {
    const DHalves d;
    hn::StoreU(hn::ConcatOdd(d, hn::BitCast(d, v1), hn::BitCast(d, v0)), d, to);
  }
};

// In turn, one of vector 0 and one of vector 1: then 16-bit values need no more than a shift or a
// mask, while to pack and unpack InOrder moves them between lanes. For floats it is the other way
// round.
struct InTurn {
  template <int kWhich>
  static HWY_INLINE VF Floats(const float* from) {
    const DF d;
    const VF first = hn::LoadU(d, from);
    const VF second = hn::LoadU(d, from + NumLanes());
    return kWhich == 0 ? hn::ConcatEven(d, second, first) : hn::ConcatOdd(d, second, first);
  }
  template <int kWhich>
  static HWY_INLINE VU Low(const uint16_t* from) {
    const VU both = Both(from);
    return kWhich == 0 ? hn::And(both, hn::Set(DU(), 0xffffu)) : hn::ShiftRight<16>(both);
  }
  template <int kWhich>
  static HWY_INLINE VU Signed(const uint16_t* from) {
    const auto both = hn::BitCast(DI(), Both(from));
    return hn::BitCast(DU(), hn::ShiftRight<16>(kWhich == 0 ? hn::ShiftLeft<16>(both) : both));
  }
  template <int kWhich>
  static HWY_INLINE VU High(const uint16_t* from) {
    const VU both = Both(from);
    return kWhich == 0 ? hn::ShiftLeft<16>(both) : hn::And(both, hn::Set(DU(), 0xffff0000u));
  }
  static HWY_INLINE void StoreLow(VU v0, VU v1, uint16_t* to) {
    StoreBoth(v0, hn::ShiftLeft<16>(v1), to);
  }
  static HWY_INLINE void StoreHigh(VU v0, VU v1, uint16_t* to) {
    StoreBoth(hn::ShiftRight<16>(v0), v1, to);
  }

 private:
  static HWY_INLINE VU Both(const uint16_t* from) {
    return hn::BitCast(DU(), hn::LoadU(DHalves(), from));
  }
  static HWY_INLINE void StoreBoth(VU even, VU odd, uint16_t* to) {
    const DHalves d;
    hn::StoreU(hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, even)), d, to);
  }
};

// What follows keeps copies of what it needs of a run, which the compiler holds in registers: what
// lies in memory might be changed by every store. `i` is the first element of the two vectors.

// Times the scale. The type is the same for a whole run, so the branch is always predicted.
template <typename Order>
struct Gradients {
  Gradients(const RuleScalars& s, const TileRun& run)
      : values(run.gradient), dtype(run.gradient_dtype), scale(s.gradient_scale) {}
  template <int kWhich>
  HWY_INLINE VF Load(int64_t i) const {
    return hn::Mul(Unscaled<kWhich>(i), hn::Set(DF(), scale));
  }
  template <int kWhich>
  HWY_INLINE VF Unscaled(int64_t i) const {
    const DF d;
    const uint16_t* const bits = static_cast<const uint16_t*>(values) + i;
    if (dtype == DType::kBF16) [[likely]]
      return hn::BitCast(d, Order::template High<kWhich>(bits));
    if (dtype == DType::kF16) {
      return fp16::HWY_NAMESPACE::Widen(d, Order::template Low<kWhich>(bits));
    }
    return Order::template Floats<kWhich>(static_cast<const float*>(values) + i);
  }
  const void* const values;
  const DType dtype;
  const float scale;
};

// With kNanBits for what is no number.
HWY_INLINE VU BitsWithNan(VF value) {
  const DF d;
  const VF nan = hn::BitCast(d, hn::Set(DU(), kNanBits));
  return hn::BitCast(DU(), hn::IfThenElse(hn::IsNaN(value), nan, value));
}

// ---- Where the fp32 master weight is read from and written to.

struct Fp32Weights {
  using Order = InOrder;
  explicit Fp32Weights(const TileRun& run) : weight(static_cast<float*>(run.weight)) {}
  template <int kWhich>
  HWY_INLINE VF Load(int64_t i) const {
    return Order::Floats<kWhich>(weight + i);
  }
  HWY_INLINE void Store(int64_t i, VF p0, VF p1) const {
    hn::StoreU(p0, DF(), weight + i);
    hn::StoreU(p1, DF(), weight + i + NumLanes());
  }
  float* const weight;
};

struct Fp16Weights {
  using Order = InOrder;
  explicit Fp16Weights(const TileRun& run)
      : weight(static_cast<uint16_t*>(run.weight)), master(run.master) {}
  template <int kWhich>
  HWY_INLINE VF Load(int64_t i) const {
    return Order::Floats<kWhich>(master + i);
  }
  HWY_INLINE void Store(int64_t i, VF p0, VF p1) const {
    hn::StoreU(p0, DF(), master + i);
    hn::StoreU(p1, DF(), master + i + NumLanes());
    Order::StoreLow(fp16::HWY_NAMESPACE::Narrow(DF(), p0), fp16::HWY_NAMESPACE::Narrow(DF(), p1),
                    weight + i);
  }
  uint16_t* const weight;
  float* const master;
};

// As Join and Split of base/bfloat16.h: a remainder is the low half of the master's bits.
template <typename TheOrder>
struct SplitWeights {
  using Order = TheOrder;
  explicit SplitWeights(const TileRun& run)
      : w16(static_cast<uint16_t*>(run.weight)), r16(reinterpret_cast<uint16_t*>(run.remainder)) {}
  template <int kWhich>
  HWY_INLINE VF Load(int64_t i) const {
    const VU low = Order::template Signed<kWhich>(r16 + i);
    return hn::BitCast(DF(), hn::Add(Order::template High<kWhich>(w16 + i), low));
  }
  HWY_INLINE void Store(int64_t i, VF p0, VF p1) const {
    const DU du;
    const VU half = hn::Set(du, 0x8000u);
    const VU bits0 = BitsWithNan(p0);
    const VU bits1 = BitsWithNan(p1);
    Order::StoreHigh(hn::Add(bits0, half), hn::Add(bits1, half), w16 + i);
    Order::StoreLow(bits0, bits1, r16 + i);
  }
  uint16_t* const w16;
  uint16_t* const r16;
};

// The dither of a run's elements, InTurn: Begin takes the hash of a block, Of adds what its
// elements have.
struct Dither {
  Dither(const RuleScalars& s, const TileRun& run)
      : first_elem_(static_cast<uint32_t>(run.first_elem)),
        key_(s.rounding_key),
        step_(s.rounding_step) {}
  HWY_INLINE void BeginBlock(int64_t first) {
    of_block_ = BlockDither(key_, step_, first_elem_ + static_cast<uint32_t>(first));
  }
  template <int kWhich>
  HWY_INLINE VU Of(int64_t in_block) const {
    const DU du;
    const uint32_t* const of_elems = kDitherOfElems.data() + kWhich * (kMomentBlockElems / 2);
    return hn::Add(hn::Load(du, of_elems + in_block / 2), hn::Set(du, of_block_));
  }

 private:
  const uint32_t first_elem_;
  const uint32_t key_;
  const uint32_t step_;
  uint32_t of_block_ = 0;
};

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#endif  // FOREBAY_OPTIMIZER_KERNELS_UPDATE_PLANES_INL_H_
