// Elements of activations and weights as kernels see them: read as floats, written rounded to
// nearest, one by one or 16 bytes at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "forebay/device/ptx.h"

namespace forebay::cuda {

struct Bf16Element {
  uint16_t bits;
};
struct Fp16Element {
  uint16_t bits;
};

FOREBAY_DEVICE float ToFloat(float value) {
  return value;
}
FOREBAY_DEVICE float ToFloat(Bf16Element value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
FOREBAY_DEVICE float ToFloat(Fp16Element value) {
  return __half2float(__ushort_as_half(value.bits));
}
FOREBAY_DEVICE void Round(float from, float& to) {
  to = from;
}
FOREBAY_DEVICE void Round(float from, Bf16Element& to) {
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(from));
}
FOREBAY_DEVICE void Round(float from, Fp16Element& to) {
  to.bits = __half_as_ushort(__float2half_rn(from));
}

// Elements in 16 bytes.
template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <typename T>
struct alignas(16) WideElements {
  T at[kWide<T>];
};

// One element, or a multiple of kWide<T> at an address that is aligned to 16 bytes.
template <typename T, int kCount>
FOREBAY_DEVICE void Load(const T* from, float (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = ToFloat(*from);
  } else {
    static_assert(kCount % kWide<T> == 0);
#pragma unroll
    for (int i = 0; i < kCount; i += kWide<T>) {
      const WideElements<T> wide = *reinterpret_cast<const WideElements<T>*>(from + i);
#pragma unroll
      for (int j = 0; j < kWide<T>; ++j) to[i + j] = ToFloat(wide.at[j]);
    }
  }
}
template <typename T, int kCount>
FOREBAY_DEVICE void Store(const float (&from)[kCount], T* to) {
  if constexpr (kCount == 1) {
    Round(from[0], *to);
  } else {
    static_assert(kCount % kWide<T> == 0);
#pragma unroll
    for (int i = 0; i < kCount; i += kWide<T>) {
      WideElements<T> wide;
#pragma unroll
      for (int j = 0; j < kWide<T>; ++j) Round(from[i + j], wide.at[j]);
      *reinterpret_cast<WideElements<T>*>(to + i) = wide;
    }
  }
}
// to (+)= from.
template <typename T, int kCount>
FOREBAY_DEVICE void StoreOrAdd(float (&from)[kCount], bool adds, T* to) {
  if (adds) {
    float before[kCount];
    Load(to, before);
#pragma unroll
    for (int i = 0; i < kCount; ++i) from[i] += before[i];
  }
  Store(from, to);
}

}  // namespace forebay::cuda
