// Text generation as tokens: the prompt once, then one token after another. Text and templates are
// the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/step/param_source.h"
#include "forebay/train/infer/token_sampler.h"

namespace forebay {

struct GenerateOptions {
  int64_t max_tokens = 128;  // to generate, at least 1
  SamplingOptions sampling;
  std::vector<int64_t> eos_token_ids;  // each ends the text (DecoderConfig::eos_token_ids)
};

struct GenerateResult {
  std::vector<int32_t> tokens;  // generated, the ending EOS included
  bool ended = false;           // by an EOS token, else by max_tokens
  int64_t prompt_tokens = 0;
  double prompt_s = 0;    // until the first token is known
  double generate_s = 0;  // for those after it
  // Tokens a second: of the prompt, and of those generated after the first (0 when there are none).
  double PromptTokensPerSecond() const;
  double TokensPerSecond() const;
};

// Positions that the sequence takes at most: what the KvCache needs. The last token is never fed
// back.
int64_t GenerationLength(int64_t prompt_tokens, const GenerateOptions& options);

// Continues `prompt` (at least one token). `on_token` is called with each token as it is chosen,
// the EOS included; a failure ends the generation with that status. It may be empty. `budget` pays
// for the cache. BadInputError (empty prompt, positions, vocabulary), UsageError (options),
// NumericalError, the source's errors.
absl::StatusOr<GenerateResult> Generate(Decoder& decoder, ParamSource& source,
                                        std::span<const int32_t> prompt,
                                        const GenerateOptions& options, MemoryBudget* budget,
                                        const std::function<absl::Status(int32_t token)>& on_token);

}  // namespace forebay
