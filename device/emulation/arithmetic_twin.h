// CUDA's arithmetic, atomics and cached accesses, for kernels that g++ compiles. With
// -ffp-contract=off the functions that round once have a GPU's bits; the approximations have not.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names.

// ---- Bits
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __int_as_float(int bits) {
  return std::bit_cast<float>(bits);
}
inline int __float_as_int(float value) {
  return std::bit_cast<int>(value);
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __clz(int bits) {
  return std::countl_zero(static_cast<unsigned>(bits));
}
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}

// What is no number is as the emulated GPU has it. Sums and products that kernels write with
// operators are the host's.
inline float OnGpu(float value) {
  return value == value ? value : ::forebay::emulation::NanOf(value);
}

// ---- One rounding each
inline float __fadd_rn(float a, float b) {
  return OnGpu(a + b);
}
inline float __fsub_rn(float a, float b) {
  return OnGpu(a - b);
}
inline float __fmul_rn(float a, float b) {
  return OnGpu(a * b);
}
inline float __fdiv_rn(float a, float b) {
  return OnGpu(a / b);
}
inline float __fsqrt_rn(float a) {
  return OnGpu(std::sqrt(a));
}
inline float __fmaf_rn(float a, float b, float c) {
  return OnGpu(std::fma(a, b, c));
}

// ---- Approximations on a GPU, which has other bits
inline float __expf(float a) {
  return OnGpu(std::exp(a));
}
inline float __logf(float a) {
  return OnGpu(std::log(a));
}
inline float __fdividef(float a, float b) {
  return OnGpu(a / b);
}
inline float rsqrtf(float a) {
  return OnGpu(1.0f / std::sqrt(a));
}

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a > b ? a : b;
}

// ---- Accesses that go past a cache
template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}

// ---- Atomics, which order nothing else
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline int atomicAdd(int* to, int value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline float atomicAdd(float* to, float value) {
  auto* const bits = reinterpret_cast<unsigned*>(to);
  unsigned old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(bits, &old,
                                      std::bit_cast<unsigned>(std::bit_cast<float>(old) + value),
                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<float>(old);
}
inline int atomicMax(int* to, int value) {
  int old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (old < value &&
         !__atomic_compare_exchange_n(to, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
// NOLINTEND(bugprone-reserved-identifier)
