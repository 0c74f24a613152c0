// `forebay generate`: from text to text. Tokens and templates come from the model's own tokenizer
// (data/data_program.h), weights from the model folder, streamed where they do not fit the budget.
//
// Not for: choosing tokens (token_sampler.h, generate.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/infer/generate.h"
#include "forebay/train/infer/infer_options.h"

namespace forebay {

struct GenerateTextOptions {
  InferOptions infer;
  std::string prompt;
  bool chat = false;         // `prompt` is one user turn for the model's chat template
  int64_t max_tokens = 128;  // fewer when the model's positions end before
  SamplingOptions sampling;
};

struct GeneratedText {
  std::string text;
  GenerateResult result;
};

// `on_text` is called with each piece of text as it becomes complete. BadInputError (model,
// prompt), DoesNotFitError with the least --ram, EnvironmentError (no forebay-data), errors of
// Generate.
absl::StatusOr<GeneratedText> GenerateText(const GenerateTextOptions& options,
                                           const std::function<void(std::string_view)>& on_text);

// {"text", "tokens", "prompt_tokens", "ended", "prompt_tokens_per_s", "tokens_per_s"}.
Json ToJson(const GeneratedText& generated);

}  // namespace forebay
