#include "forebay/model/llama_shapes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

struct KnownShape {
  std::string_view name;
  int64_t hidden, intermediate;
  int layers;
  int64_t heads, kv_heads, vocab;
  bool tied;
};

// From the models' config.json, smallest first.
constexpr std::array<KnownShape, 9> kKnown = {{
    {"SmolLM2 135M", 576, 1536, 30, 9, 3, 49152, true},
    {"SmolLM2 360M", 960, 2560, 32, 15, 5, 49152, true},
    {"TinyLlama 1.1B", 2048, 5632, 22, 32, 4, 32000, false},
    {"SmolLM2 1.7B", 2048, 8192, 24, 32, 32, 49152, true},
    {"Llama-2 7B", 4096, 11008, 32, 32, 32, 32000, false},
    {"Llama-3 8B", 4096, 14336, 32, 32, 8, 128256, false},
    {"Llama-2 13B", 5120, 13824, 40, 40, 40, 32000, false},
    {"Llama 33B", 6656, 17920, 60, 52, 52, 32000, false},
    {"Llama-2 70B", 8192, 28672, 80, 64, 8, 32000, false},
}};
constexpr double kTolerance = 0.05;

DecoderConfig ConfigOf(const KnownShape& shape) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.num_layers = shape.layers;
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.hidden / shape.heads;
  config.max_positions = 4096;
  config.tied_embeddings = shape.tied;
  config.window.assign(static_cast<size_t>(shape.layers), 0);
  return config;
}

int64_t ParamsOf(const KnownShape& shape) {
  return BuildInventory(ConfigOf(shape)).num_params();
}

// At `place` between two values, as sizes of models grow: by ratios.
double Between(int64_t low, int64_t high, double place) {
  return static_cast<double>(low) *
         std::pow(static_cast<double>(high) / static_cast<double>(low), place);
}

int64_t RoundTo(double value, int64_t multiple) {
  const auto rounded = static_cast<int64_t>(std::llround(value / static_cast<double>(multiple)));
  return std::max<int64_t>(1, rounded) * multiple;
}

// Below the smallest and above the largest, the line through the two nearest goes on.
KnownShape Interpolate(const KnownShape& low, const KnownShape& high, int64_t num_params) {
  const auto low_params = static_cast<double>(ParamsOf(low));
  const double place = std::log(static_cast<double>(num_params) / low_params) /
                       std::log(static_cast<double>(ParamsOf(high)) / low_params);
  constexpr int64_t kHeadDim = 128;
  KnownShape shape = low;
  shape.hidden = RoundTo(Between(low.hidden, high.hidden, place), kHeadDim);
  shape.intermediate = RoundTo(Between(low.intermediate, high.intermediate, place), 256);
  shape.heads = shape.kv_heads = shape.hidden / kHeadDim;
  shape.vocab = 32000;
  shape.tied = false;
  shape.layers = 1;
  const int64_t with_one = ParamsOf(shape);
  shape.layers = 2;
  const int64_t block = ParamsOf(shape) - with_one;
  const auto wanted = static_cast<double>(num_params - (with_one - block));
  shape.layers = static_cast<int>(
      std::clamp<int64_t>(std::llround(wanted / static_cast<double>(block)), 1, 4096));
  return shape;
}

}  // namespace

LlamaShape LlamaShapeOf(int64_t num_params) {
  const auto distance = [num_params](const KnownShape& shape) {
    return std::abs(
        std::log(static_cast<double>(ParamsOf(shape)) / static_cast<double>(num_params)));
  };
  const KnownShape& nearest = *std::ranges::min_element(kKnown, {}, distance);
  if (distance(nearest) <= kTolerance) return {ConfigOf(nearest), std::string(nearest.name)};
  const auto above = std::ranges::find_if(
      kKnown, [num_params](const KnownShape& shape) { return ParamsOf(shape) > num_params; });
  const auto high = std::clamp(above, kKnown.begin() + 1, kKnown.end() - 1);
  const KnownShape& low = *(high - 1);
  return {ConfigOf(Interpolate(low, *high, num_params)),
          fmt::format("a Llama shape between {} and {}", low.name, high->name)};
}

absl::StatusOr<int64_t> ParseParamCount(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  constexpr std::string_view kUnits = "KMBT";
  double scale = error == std::errc() ? 1 : std::nan("");
  if (!unit.empty()) {
    const char letter = static_cast<char>(unit[0] & ~0x20);  // upper case
    const size_t power = kUnits.find(letter == 'G' ? 'B' : letter);
    scale *= unit.size() == 1 && power != std::string_view::npos
                 ? std::pow(1000.0, static_cast<double>(power + 1))
                 : std::nan("");
  }
  const double count = value * scale;
  if (!(count >= static_cast<double>(kLeastShapeParams) &&
        count <= static_cast<double>(kMostShapeParams))) {
    return UsageError(
        fmt::format("'{}' is no number of parameters from {} to {}, such as 13B, 1.1B or 135M",
                    text, FormatCount(kLeastShapeParams), FormatCount(kMostShapeParams)));
  }
  return static_cast<int64_t>(count);
}

}  // namespace forebay
