// Shapes of Llama models by their number of parameters, for questions about a model of some size
// that name no config.json (swap-bench step --params=13B).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

struct LlamaShape {
  DecoderConfig config;
  // "Llama-2 13B", or how the shape was found where no published model has about this size.
  std::string description;
};

inline constexpr int64_t kLeastShapeParams = 10'000'000;
inline constexpr int64_t kMostShapeParams = 1'000'000'000'000;

// The published model of that size within 5 %, else a shape between its neighbours: hidden size and
// width of the MLP by the size's place between theirs, and as many layers as come closest to it.
// Requires: kLeastShapeParams <= num_params <= kMostShapeParams.
LlamaShape LlamaShapeOf(int64_t num_params);

// "13B", "1.1B", "135M", "360000000": K, M, B (or G) and T are powers of 1000. UsageError (without
// the option's name) when it is no such number, or not from kLeastShapeParams to kMostShapeParams.
absl::StatusOr<int64_t> ParseParamCount(std::string_view text);

}  // namespace forebay
