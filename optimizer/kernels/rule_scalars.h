// The scalars of an update as every kernel uses them: computed in double, each rounded to fp32
// once.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "forebay/base/check.h"
#include "forebay/optimizer/kernels/tile_update.h"

namespace forebay {

// How the dither of moments that are kept in less than fp32 moves (BlockDither).
inline constexpr uint32_t kDitherOfElem = 0x91E10DA5u;  // 2^32 / 1.3247..^2, the plastic number
inline constexpr uint32_t kDitherOfStep = 0x9E3779B9u;  // 2^32 / 1.6180.., the golden ratio

// What is no number has these bits wherever a kernel makes fewer bits or two planes of a value: of
// others, such as a GPU's 0x7fffffff, the rounding would make a zero.
inline constexpr uint32_t kNanBits = 0x7fc00000u;

// What all kernels require of a run (tile_update.h).
inline void CheckRun(const OptimizerConfig& config, const TileRun& run) {
  FOREBAY_CHECK(run.m != nullptr || !HasFirstMoment(config));
  FOREBAY_CHECK(run.v != nullptr || !HasSecondMoment(config));
  FOREBAY_CHECK(run.moments == MomentFormat::kFp32 || (run.weights == WeightFormat::kSplitBf16 &&
                                                       run.first_elem % kMomentBlockElems == 0));
}

// The arithmetic that all kernels share, in this order, every operation in fp32 and rounded on its
// own (no fused multiply-add: SSE has none, and the kernels wait for memory anyway, so separate
// rounding costs nothing and gives the same bits on every instruction set and on GPUs):
//   all      g = g * gradient_scale
//   AdamW    p = p * keep
//            m = m + (g - m) * one_minus_beta1                (torch's lerp)
//            v = v * beta2 + (one_minus_beta2 * g) * g        (torch's mul and addcmul)
//            p = p - step_size * (m / (sqrt(v) * inverse_sqrt_correction2 + eps))
//   Adam     g = g + l2 * p, then as AdamW without keep
//   Adagrad  g = g + l2 * p
//            v = v + g * g
//            p = p - step_size * (g / (sqrt(v) + eps))
//   Lion     c = m * beta1 + g * one_minus_beta1
//            p = p * keep - step_size * sign(c)               (sign(0) = 0)
//            m = m * beta2 + g * one_minus_beta2
//   SGD      g = g + l2 * p
//            m = m * momentum + g                             (with momentum)
//            p = p - step_size * (g + m * momentum | m | g)   (Nesterov, momentum, neither)
// AdamW and Adam differ from torch's in one rounding: torch divides sqrt(v) by sqrt(1 - beta2^t),
// we multiply by the inverse. Division and square root are correctly rounded by IEEE 754, so they
// need no care.
struct RuleScalars {
  RuleScalars(const OptimizerConfig& config, const UpdateScalars& scalars, const TileRun& run)
      : gradient_scale(static_cast<float>(scalars.gradient_scale)) {
    const double b1 = scalars.beta1.value_or(config.beta1);
    const double b2 = scalars.beta2.value_or(config.beta2);
    const double lr = scalars.lr * run.lr_scale;
    const double t = static_cast<double>(scalars.step);
    keep = static_cast<float>(1.0 - lr * run.weight_decay);
    l2 = static_cast<float>(run.weight_decay);
    beta1 = static_cast<float>(b1);
    one_minus_beta1 = static_cast<float>(1.0 - b1);
    beta2 = static_cast<float>(b2);
    one_minus_beta2 = static_cast<float>(1.0 - b2);
    inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(b2, t)));
    eps = static_cast<float>(scalars.eps.value_or(config.eps));
    momentum = static_cast<float>(scalars.beta1.value_or(config.momentum));
    const bool corrects =
        config.kind == OptimizerKind::kAdamW || config.kind == OptimizerKind::kAdam;
    step_size = static_cast<float>(corrects ? lr / (1.0 - std::pow(b1, t)) : lr);
    rounding_key = RoundingKey(scalars.rounding_seed, run.layer);
    rounding_step = static_cast<uint32_t>(scalars.step) * kDitherOfStep;
  }

  // A key for the hashes of a layer's elements. Source of the mixing: splitmix64, Steele et al.
  // 2014.
  static uint32_t RoundingKey(uint64_t seed, int layer) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(layer) + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>(z ^ (z >> 31));
  }

  float gradient_scale = 1;
  float keep = 1;  // what decoupled decay leaves of a weight; exactly 1 without decay
  float l2 = 0;    // what decay adds of a weight to its gradient
  float beta1 = 0;
  float one_minus_beta1 = 1;
  float beta2 = 0;
  float one_minus_beta2 = 1;
  float inverse_sqrt_correction2 = 1;
  float eps = 0;
  float momentum = 0;
  float step_size = 0;
  uint32_t rounding_key = 0;
  uint32_t rounding_step = 0;  // steps times kDitherOfStep, modulo 2^32
};

// Dither of an element's first moment, in 2^-32; that of its second moment is the complement. Each
// block has a hash of its own; within it the elements follow one another by a constant, and from
// step to step all move by another, so that sums over a block and over steps come out nearly exact.
// (Two irrational rotations, from a random start: Cranley & Patterson 1976. The hash is that of
// MurmurHash3's finalizer.)
// Those of even elements, then those of odd ones.
alignas(64) inline constexpr auto kDitherOfElems = [] {
  std::array<uint32_t, kMomentBlockElems> dithers{};
  for (uint32_t i = 0; i < kMomentBlockElems; ++i) {
    dithers[i / 2 + i % 2 * (kMomentBlockElems / 2)] = i * kDitherOfElem;
  }
  return dithers;
}();
inline uint32_t BlockDither(uint32_t key, uint32_t step, uint32_t first_elem) {
  uint32_t h = first_elem / static_cast<uint32_t>(kMomentBlockElems) + key;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return (h ^ (h >> 16)) + step;
}

// Codes of 8-bit moments (tile_update.h).
// Below 127 and 255, so that with a dither of up to 1/2 no code is beyond them, however fp32
// rounds.
inline constexpr float kMostSignedCode = 127.0f - 0x1p-10f;
inline constexpr float kMostUnsignedCode = 255.0f - 0x1p-10f;
// Added to a small number this leaves it rounded to the nearest whole one, ties to even, in the low
// bits, in two's complement.
inline constexpr float kRoundsToWhole = 0x1.8p23f;
inline constexpr float kLeastMomentScale = 0x1p-100f;

}  // namespace forebay
