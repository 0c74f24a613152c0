// `forebay generate`: from text to text. Tokens and templates come from the model's own tokenizer
// (data/data_program.h), weights from the model folder, streamed where they do not fit the budget.
//
// Not for: choosing tokens (token_sampler.h, generate.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/infer/generate.h"
#include "forebay/train/infer/infer_options.h"

namespace forebay {

struct GenerateTextOptions {
  InferOptions infer;
  std::vector<std::string> prompts;  // answered together
  bool chat = false;                 // each is one user turn for the model's chat template
  std::string prompt_file;           // instead of these: EncodePromptFile
  int64_t max_tokens = 128;          // of each answer; fewer where the model's positions end before
  SamplingOptions sampling;
  std::vector<std::string> stops;  // each ends an answer, and is no part of it; none empty
};

struct GeneratedText {
  std::vector<std::string> texts;  // by prompt
  std::vector<int64_t> lines;      // the same, of a file of prompts; else empty
  GenerateResult result;
};

// The functions that are told of progress. Each may be empty.
struct GenerateListener {
  // With one prompt: each piece of text as it becomes complete.
  std::function<void(std::string_view)> on_text;
  // The share of the prompts that is read, before the first token.
  std::function<void(double fraction)> on_prompts;
  // How many tokens all answers have together, of so many that they can still have.
  OnProgress on_progress;
};

// BadInputError (model; prompt, with its line), DoesNotFitError with the least --ram or --gpu_mem,
// EnvironmentError (no forebay-data, no GPU, or it fails), errors of Generate.
absl::StatusOr<GeneratedText> GenerateText(const GenerateTextOptions& options,
                                           const GenerateListener& listener);

// {"text", "tokens", "prompt_tokens", "ended", "prompt_tokens_per_s", "tokens_per_s",
// "s_per_answer", "read_bytes_per_token"}; of several prompts, and of a file of them, with
// "answers": [{"text", "tokens", "prompt_tokens", "ended"}, ...] in place of the first four, and
// "line" in each answer to a file's. On a GPU "copied_bytes_per_token" too, of weights.
Json ToJson(const GeneratedText& generated);

}  // namespace forebay
