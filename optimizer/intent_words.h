// The words of a step's intent about tensors that its update leaves alone, beside the trainer's own
// words (docs/formats.md, "intent.fbs"). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

struct IntentWords {
  Json trainer;
  std::vector<uint8_t> left_alone;  // by tensor
};

// The trainer's words as they are where no tensor is left alone.
Json EncodeIntentWords(const Json& trainer, std::span<const uint8_t> left_alone);
// CorruptError where that is not how `json` was made.
absl::StatusOr<IntentWords> DecodeIntentWords(const Json& json, size_t num_tensors);

}  // namespace forebay
