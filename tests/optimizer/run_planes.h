// The planes of one run in memory, of any format, for the tests of the update kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/hash.h"
#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/tile_update.h"

namespace forebay {

// Equal bits, or both NaN: IEEE 754 leaves open which operand's NaN an operation hands on.
inline bool SameValue(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

struct RunFormat {
  WeightFormat weights = WeightFormat::kSplitBf16;
  MomentFormat moments = MomentFormat::kFp32;
  DType gradient_dtype = DType::kBF16;
};

// All that are supported: every layout with every dtype of gradients.
inline std::vector<RunFormat> AllRunFormats() {
  std::vector<RunFormat> formats;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    formats.push_back({WeightFormat::kSplitBf16, MomentFormat::kFp32, dtype});
    formats.push_back({WeightFormat::kFp16, MomentFormat::kFp32, dtype});
    formats.push_back({WeightFormat::kFp32, MomentFormat::kFp32, dtype});
    formats.push_back({WeightFormat::kSplitBf16, MomentFormat::kBf16, dtype});
    formats.push_back({WeightFormat::kSplitBf16, MomentFormat::kInt8, dtype});
  }
  return formats;
}

inline std::string NameOf(const RunFormat& format) {
  const char* const weights[] = {"Split", "Fp16", "Fp32"};
  const char* const moments[] = {"", "Bf16Moments", "Int8Moments"};
  return std::string(weights[static_cast<int>(format.weights)]) +
         moments[static_cast<int>(format.moments)] +
         (format.gradient_dtype == DType::kBF16  ? "WithBf16Gradients"
          : format.gradient_dtype == DType::kF16 ? "WithFp16Gradients"
                                                 : "WithFp32Gradients");
}

class RunPlanes {
 public:
  RunPlanes(const RunFormat& run_format, int64_t num_elems)
      : format(run_format),
        weight(num_elems * 4),
        remainder(num_elems),
        master(num_elems),
        m(num_elems * 4),
        v(num_elems * 4),
        m_scale(num_elems / kMomentBlockElems + 1),
        v_scale(num_elems / kMomentBlockElems + 1),
        gradient(num_elems * 4) {}

  int64_t size() const { return static_cast<int64_t>(master.size()); }

  TileRun Run() {
    TileRun run;
    run.num_elems = size();
    run.weights = format.weights;
    run.weight = weight.data();
    if (format.weights == WeightFormat::kSplitBf16) run.remainder = remainder.data();
    if (format.weights == WeightFormat::kFp16) run.master = master.data();
    run.moments = format.moments;
    run.m = m.data();
    run.v = v.data();
    if (format.moments == MomentFormat::kInt8) {
      run.m_scale = m_scale.data();
      run.v_scale = v_scale.data();
    }
    run.gradient = gradient.data();
    run.gradient_dtype = format.gradient_dtype;
    return run;
  }

  void SetMaster(int64_t i, float value) {
    switch (format.weights) {
      case WeightFormat::kSplitBf16: {
        const SplitMaster split = Split(value);
        As<Bf16>(weight)[i] = split.w16;
        remainder[i] = split.r16;
        return;
      }
      case WeightFormat::kFp16:
        As<Fp16>(weight)[i] = FloatToFp16(value);
        master[i] = value;
        return;
      case WeightFormat::kFp32:
        As<float>(weight)[i] = value;
        return;
    }
  }
  // What is computed with.
  float Weight(int64_t i) const {
    switch (format.weights) {
      case WeightFormat::kSplitBf16:
        return Bf16ToFloat(As<Bf16>(weight)[i]);
      case WeightFormat::kFp16:
        return Fp16ToFloat(As<Fp16>(weight)[i]);
      default:
        return As<float>(weight)[i];
    }
  }
  float Master(int64_t i) const {
    switch (format.weights) {
      case WeightFormat::kSplitBf16:
        return Join(As<Bf16>(weight)[i], remainder[i]);
      case WeightFormat::kFp16:
        return master[i];
      default:
        return As<float>(weight)[i];
    }
  }
  // Of fp32 and bf16 moments (cut to bf16).
  void SetMoments(int64_t i, float first, float second) {
    SetMoment(m, i, first);
    SetMoment(v, i, second);
  }
  float M(int64_t i) const {
    if (format.moments != MomentFormat::kInt8) return Moment(m, i);
    const float scale = Bf16ToFloat(m_scale[i / kMomentBlockElems]);
    return static_cast<float>(As<int8_t>(m)[i]) * (scale * (1.0f / kMostSignedCode));
  }
  float V(int64_t i) const {
    if (format.moments != MomentFormat::kInt8) return Moment(v, i);
    const float scale = Bf16ToFloat(v_scale[i / kMomentBlockElems]);
    const float y = static_cast<float>(As<uint8_t>(v)[i]) * (scale * (1.0f / kMostUnsignedCode));
    return y * y;
  }
  void SetGradient(int64_t i, float value) {
    if (format.gradient_dtype == DType::kF32) {
      As<float>(gradient)[i] = value;
    } else {
      As<uint16_t>(gradient)[i] =
          format.gradient_dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
    }
  }
  float Gradient(int64_t i) const {
    if (format.gradient_dtype == DType::kF32) return As<float>(gradient)[i];
    const uint16_t bits = As<uint16_t>(gradient)[i];
    return format.gradient_dtype == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
  }

  // Of all that an update writes.
  std::string Digest() const {
    Xxh3_128 hash;
    hash.Update(std::span<const std::byte>(weight));
    hash.Update(std::as_bytes(std::span(remainder)));
    hash.Update(std::as_bytes(std::span(master)));
    hash.Update(std::span<const std::byte>(m));
    hash.Update(std::span<const std::byte>(v));
    hash.Update(std::as_bytes(std::span(m_scale)));
    hash.Update(std::as_bytes(std::span(v_scale)));
    return hash.Hex();
  }

  RunFormat format;
  std::vector<std::byte> weight;
  std::vector<int16_t> remainder;
  std::vector<float> master;
  std::vector<std::byte> m, v;
  std::vector<uint16_t> m_scale, v_scale;
  std::vector<std::byte> gradient;

 private:
  template <typename T>
  static T* As(std::vector<std::byte>& plane) {
    return reinterpret_cast<T*>(plane.data());
  }
  template <typename T>
  static const T* As(const std::vector<std::byte>& plane) {
    return reinterpret_cast<const T*>(plane.data());
  }
  void SetMoment(std::vector<std::byte>& plane, int64_t i, float value) {
    if (format.moments == MomentFormat::kFp32) As<float>(plane)[i] = value;
    if (format.moments == MomentFormat::kBf16) {
      As<Bf16>(plane)[i] = static_cast<Bf16>(std::bit_cast<uint32_t>(value) >> 16);
    }
  }
  float Moment(const std::vector<std::byte>& plane, int64_t i) const {
    return format.moments == MomentFormat::kFp32 ? As<float>(plane)[i]
                                                 : Bf16ToFloat(As<Bf16>(plane)[i]);
  }
};

}  // namespace forebay
