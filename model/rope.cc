#include "forebay/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "forebay/base/check.h"

namespace forebay {
namespace {

// theta^(2i / head_dim), in fp32.
std::vector<float> PositionFrequencies(double theta, int64_t head_dim) {
  std::vector<float> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    // pow in double and rounded once: the nearest float whatever the math library.
    result[i] =
        static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
  }
  return result;
}

// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
void ScaleLlama3(const RopeConfig& config, std::vector<float>& inv_freq) {
  const double original = static_cast<double>(config.original_max_positions);
  const float longest_kept = static_cast<float>(original / config.high_freq_factor);
  const float shortest_divided = static_cast<float>(original / config.low_freq_factor);
  const float factor = static_cast<float>(config.factor);
  const float low = static_cast<float>(config.low_freq_factor);
  const float range = static_cast<float>(config.high_freq_factor - config.low_freq_factor);
  for (float& frequency : inv_freq) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > shortest_divided) {
      frequency /= factor;
    } else if (!(wavelength < longest_kept)) {
      const float smooth = (static_cast<float>(original) / wavelength - low) / range;
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// The pair whose wavelength turns `num_rotations` times within the original context (yarn, Peng et
// al. 2023, arXiv:2309.00071, section 3.2).
double CorrectionDim(double num_rotations, const RopeConfig& config, int64_t head_dim) {
  const double original = static_cast<double>(config.original_max_positions);
  return static_cast<double>(head_dim) *
         std::log(original / (num_rotations * 2 * std::numbers::pi)) / (2 * std::log(config.theta));
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor > 0) return config.attention_factor;
  if (config.mscale > 0 && config.mscale_all_dim > 0) {
    return YarnScale(config.factor, config.mscale) /
           YarnScale(config.factor, config.mscale_all_dim);
  }
  return YarnScale(config.factor, 1.0);
}

std::vector<float> YarnFrequencies(const RopeConfig& config, int64_t head_dim) {
  double low = CorrectionDim(config.beta_fast, config, head_dim);
  double high = CorrectionDim(config.beta_slow, config, head_dim);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // as transformers avoids the division by zero
  std::vector<float> result = PositionFrequencies(config.theta, head_dim);
  for (size_t i = 0; i < result.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float kept = 1.0f - ramp;
    const float extrapolated = 1.0f / result[i];
    const float interpolated = 1.0f / (static_cast<float>(config.factor) * result[i]);
    result[i] = interpolated * (1.0f - kept) + extrapolated * kept;
  }
  return result;
}

bool IsLong(const RopeConfig& config, int64_t sequence_tokens) {
  return config.scaling == RopeScaling::kLongRope &&
         sequence_tokens > config.original_max_positions;
}

// Ding et al. 2024, arXiv:2402.13753.
RopeFrequencies LongRope(const RopeConfig& config, int64_t head_dim, int64_t sequence_tokens) {
  RopeFrequencies result;
  result.inv_freq = PositionFrequencies(config.theta, head_dim);
  const std::vector<double>& factors =
      IsLong(config, sequence_tokens) ? config.long_factors : config.short_factors;
  for (size_t i = 0; i < result.inv_freq.size(); ++i) {
    result.inv_freq[i] = 1.0f / (static_cast<float>(factors[i]) * result.inv_freq[i]);
  }
  double attention_factor = config.attention_factor;
  if (attention_factor == 0) {
    const auto original = static_cast<double>(config.original_max_positions);
    attention_factor =
        config.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(config.factor) / std::log(original));
  }
  result.attention_factor = static_cast<float>(attention_factor);
  return result;
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int64_t head_dim,
                                       int64_t sequence_tokens) {
  FOREBAY_CHECK(head_dim > 0 && head_dim % 2 == 0);
  if (config.scaling == RopeScaling::kLongRope) return LongRope(config, head_dim, sequence_tokens);
  RopeFrequencies result;
  if (config.scaling == RopeScaling::kYarn) {
    result.inv_freq = YarnFrequencies(config, head_dim);
    result.attention_factor = static_cast<float>(YarnAttentionFactor(config));
    return result;
  }
  result.inv_freq = PositionFrequencies(config.theta, head_dim);
  for (float& frequency : result.inv_freq) frequency = 1.0f / frequency;
  if (config.scaling == RopeScaling::kProportional) {
    const double rotated = std::floor(config.rotated_share * static_cast<double>(head_dim) / 2);
    const auto first_still = result.inv_freq.begin() + static_cast<std::ptrdiff_t>(rotated);
    std::fill(first_still, result.inv_freq.end(), 0.0f);
  }
  if (config.scaling == RopeScaling::kLinear || config.scaling == RopeScaling::kProportional) {
    for (float& frequency : result.inv_freq) frequency /= static_cast<float>(config.factor);
  }
  if (config.scaling == RopeScaling::kLlama3) ScaleLlama3(config, result.inv_freq);
  return result;
}

void FillRopeTables(const RopeFrequencies& frequencies, int64_t length, std::span<float> cos,
                    std::span<float> sin) {
  const size_t half = frequencies.inv_freq.size();
  FOREBAY_CHECK(length >= 0 && cos.size() == half * static_cast<size_t>(length) &&
                sin.size() == cos.size());
  for (size_t position = 0; position < static_cast<size_t>(length); ++position) {
    for (size_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32, as transformers does; its cosine is the nearest float.
      const float angle = static_cast<float>(position) * frequencies.inv_freq[i];
      cos[position * half + i] =
          static_cast<float>(std::cos(static_cast<double>(angle))) * frequencies.attention_factor;
      sin[position * half + i] =
          static_cast<float>(std::sin(static_cast<double>(angle))) * frequencies.attention_factor;
    }
  }
}

int64_t NumRopeRows(const RopeConfig& config, int64_t max_tokens) {
  return FirstRopeRow(config, max_tokens) + max_tokens;
}

int64_t FirstRopeRow(const RopeConfig& config, int64_t sequence_tokens) {
  return IsLong(config, sequence_tokens) ? config.original_max_positions : 0;
}

void FillRopeRows(const RopeConfig& config, int64_t head_dim, int64_t max_tokens,
                  std::span<float> cos, std::span<float> sin) {
  const int64_t num_short = FirstRopeRow(config, max_tokens);
  const auto short_elems = static_cast<size_t>(num_short * (head_dim / 2));
  FillRopeTables(ComputeRopeFrequencies(config, head_dim, num_short), num_short,
                 cos.first(short_elems), sin.first(short_elems));
  FillRopeTables(ComputeRopeFrequencies(config, head_dim, max_tokens), max_tokens,
                 cos.subspan(short_elems), sin.subspan(short_elems));
}

RopeTables BuildRopeTables(const RopeConfig& config, int64_t head_dim, int64_t max_positions,
                           int64_t length) {
  FOREBAY_CHECK(length <= max_positions);
  RopeTables tables;
  tables.head_dim = head_dim;
  tables.length = length;
  const auto num_elems = static_cast<size_t>(length * (head_dim / 2));
  tables.cos.resize(num_elems);
  tables.sin.resize(num_elems);
  FillRopeTables(ComputeRopeFrequencies(config, head_dim, length), length, tables.cos, tables.sin);
  return tables;
}

}  // namespace forebay
