#include "forebay/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "fmt/format.h"

namespace forebay {
namespace {

constexpr NumberRange kFactor = {1e-6, 1e6, true};
constexpr NumberRange kFactorOrZero = {0, 1e6, true};

struct RopeType {
  std::string_view name;
  RopeScaling scaling;
};
// Those of transformers 5.24. "dynamic" changes nothing up to the model's positions, and there are
// no others here. The three axes of "mrope" are one for text. "su" is what longrope was called
// first.
constexpr RopeType kRopeTypes[] = {
    {"default", RopeScaling::kNone},      {"linear", RopeScaling::kLinear},
    {"dynamic", RopeScaling::kNone},      {"yarn", RopeScaling::kYarn},
    {"longrope", RopeScaling::kLongRope}, {"su", RopeScaling::kLongRope},
    {"llama3", RopeScaling::kLlama3},     {"proportional", RopeScaling::kProportional},
    {"mrope", RopeScaling::kNone}};

std::string SupportedRopeTypes() {
  std::string names;
  for (const RopeType& type : kRopeTypes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", type.name);
  return names;
}

// The dictionary of RoPE's own keys, and the keys next to it. Defaults, and which keys have none,
// are those of transformers' modeling_rope_utils.py.
struct RopeFields {
  const ConfigFields& rope;
  const ConfigFields& top;
  const DecoderConfig& config;

  int64_t OriginalPositions(int64_t least) const {
    const IntRange range = {least, kPositionsRange.most};
    constexpr std::string_view kKey = "original_max_position_embeddings";
    return top.Int(kKey, range, rope.Int(kKey, range, config.max_positions));
  }
  double FactorOfPositions(int64_t original) const {
    return static_cast<double>(config.max_positions) / static_cast<double>(original);
  }
};

void ReadLlama3(const RopeFields& fields, RopeConfig& result) {
  const ConfigFields& rope = fields.rope;
  result.original_max_positions = fields.OriginalPositions(1);
  result.factor = rope.Number("factor", kFactor, std::nullopt);
  result.low_freq_factor = rope.Number("low_freq_factor", kFactor, std::nullopt);
  result.high_freq_factor = rope.Number("high_freq_factor", kFactor, std::nullopt);
  const bool both =
      rope.Find("low_freq_factor") != nullptr && rope.Find("high_freq_factor") != nullptr;
  if (both && result.high_freq_factor <= result.low_freq_factor) {
    rope.Problem(fmt::format("RoPE's 'high_freq_factor' ({}) must be above 'low_freq_factor' ({})",
                             result.high_freq_factor, result.low_freq_factor));
  }
}

void ReadYarn(const RopeFields& fields, RopeConfig& result) {
  const ConfigFields& rope = fields.rope;
  result.original_max_positions = fields.OriginalPositions(1);
  std::optional<double> implied;
  if (rope.IsNull("factor")) implied = fields.FactorOfPositions(result.original_max_positions);
  result.factor = rope.Number("factor", kFactor, implied);
  result.beta_fast = rope.Number("beta_fast", kFactor, 32.0);
  result.beta_slow = rope.Number("beta_slow", kFactor, 1.0);
  result.attention_factor = rope.Number("attention_factor", kFactor, 0.0);
  result.mscale = rope.Number("mscale", kFactorOrZero, 0.0);
  result.mscale_all_dim = rope.Number("mscale_all_dim", kFactorOrZero, 0.0);
  result.truncate = rope.Bool("truncate", true);
}

void ReadLongRope(const RopeFields& fields, RopeConfig& result) {
  const ConfigFields& rope = fields.rope;
  result.original_max_positions = fields.OriginalPositions(2);  // is divided by its logarithm
  result.factor =
      rope.Number("factor", kFactor, fields.FactorOfPositions(result.original_max_positions));
  result.attention_factor = rope.Number("attention_factor", kFactor, 0.0);
  const auto pairs = static_cast<size_t>(fields.config.head_dim / 2);
  result.short_factors = rope.Numbers("short_factor", kFactor, pairs);
  result.long_factors = rope.Numbers("long_factor", kFactor, pairs);
}

void ReadScaling(const RopeFields& fields, RopeConfig& result) {
  switch (result.scaling) {
    case RopeScaling::kNone:
      return;
    case RopeScaling::kLinear:
      result.factor = fields.rope.Number("factor", kFactor, std::nullopt);
      return;
    case RopeScaling::kProportional:
      result.factor = fields.rope.Number("factor", kFactor, 1.0);
      return;
    case RopeScaling::kLlama3:
      return ReadLlama3(fields, result);
    case RopeScaling::kYarn:
      return ReadYarn(fields, result);
    case RopeScaling::kLongRope:
      return ReadLongRope(fields, result);
  }
}

void ReadRotatedShare(const RopeFields& fields, RopeConfig& result) {
  constexpr NumberRange kShare = {0, 1};
  constexpr std::string_view kKey = "partial_rotary_factor";
  result.rotated_share = fields.rope.Number(kKey, kShare, fields.top.Number(kKey, kShare, 1.0));
  if (result.rotated_share == 1.0 || result.scaling == RopeScaling::kProportional) return;
  fields.top.Problem(fmt::format(
      "'{}' is {}, but only 1 (whole heads) is supported, or RoPE of the type proportional", kKey,
      result.rotated_share));
}

}  // namespace

// Either spelling: `rope_theta` next to `rope_scaling`, or all of it in `rope_parameters`. If a
// file has both dictionaries transformers takes `rope_scaling`; a `rope_theta` inside wins over one
// outside.
RopeConfig ReadRope(const ConfigFields& top, const DecoderConfig& config,
                    std::vector<std::string>* problems) {
  RopeConfig result;
  std::string_view key = "rope_scaling";
  if (top.Find(key) == nullptr || top.Find(key)->empty()) key = "rope_parameters";
  const Json empty = Json::object();
  const Json* dictionary = top.Find(key);
  if (dictionary == nullptr) dictionary = &empty;
  if (!dictionary->is_object()) {
    top.Problem(fmt::format("{}, but an object is expected", top.Describe(key, *dictionary)));
    return result;
  }
  for (const std::string_view layer_type : {"full_attention", "sliding_attention"}) {
    if (!dictionary->contains(std::string(layer_type))) continue;
    top.Problem(fmt::format("'{}.{}': a RoPE of its own per kind of layer is not supported", key,
                            layer_type));
    return result;
  }
  const ConfigFields rope(*dictionary, fmt::format("{}.", key), problems);
  constexpr NumberRange kTheta = {2, 1e15, true};  // yarn divides by its logarithm
  result.theta = rope.Number("rope_theta", kTheta, top.Number("rope_theta", kTheta, 10000.0));
  const std::string name = rope.String("rope_type", rope.String("type", "default"));
  const auto* const type = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                        [&](const RopeType& t) { return t.name == name; });
  if (type == std::end(kRopeTypes)) {
    top.Problem(fmt::format("the RoPE type '{}' in '{}' is not supported; supported are {}", name,
                            key, SupportedRopeTypes()));
    return result;
  }
  result.scaling = type->scaling;
  const RopeFields fields = {rope, top, config};
  ReadRotatedShare(fields, result);
  ReadScaling(fields, result);
  return result;
}

}  // namespace forebay
