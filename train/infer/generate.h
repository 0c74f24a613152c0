// Text generation as tokens: the prompts once, then one token after another of all answers
// together. Text and templates are the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/model/sequences.h"
#include "forebay/step/param_source.h"
#include "forebay/train/infer/token_sampler.h"

namespace forebay {

struct GenerateOptions {
  // To generate for each prompt, at least 1; fewer where the model's positions end before.
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<int64_t> eos_token_ids;  // each ends the text (DecoderConfig::eos_token_ids)
};

struct GeneratedTokens {
  std::vector<int32_t> tokens;  // the ending EOS included
  bool ended = false;           // by an EOS token or a stop, else by max_tokens
  int64_t prompt_tokens = 0;
};

struct GenerateResult {
  std::vector<GeneratedTokens> answers;  // by prompt
  double prompt_s = 0;                   // until the first token of each answer is known
  double generate_s = 0;                 // for those after it
  // Bytes of weights, read from the model's files meanwhile, and on a GPU copied there. The owner
  // of the source fills them in.
  int64_t read_bytes = 0;
  std::optional<int64_t> copied_bytes;
  // Tokens a second, of all answers: of the prompts, and of those generated after the first ones
  // (0 when there are none).
  double PromptTokensPerSecond() const;
  double TokensPerSecond() const;
  double SecondsPerAnswer() const;
  // Those generated, of all answers.
  int64_t num_tokens() const;
};

// Positions that a sequence takes at most: what Sequences are made for. The last token is never fed
// back.
int64_t GenerationLength(int64_t prompt_tokens, const GenerateOptions& options,
                         const DecoderConfig& config);

// Told of each token as it is chosen, the EOS included; whether its answer ends there although it
// is no EOS. A failure ends the generation with that status.
using OnToken = std::function<absl::StatusOr<bool>(size_t answer, int32_t token)>;
// How many tokens all answers have together, of so many that they can still have.
using OnProgress = std::function<void(int64_t num_tokens, int64_t most)>;
struct GenerationObserver {  // each may be empty
  OnToken on_token;
  OnProgress on_progress;
};

// Continues each prompt (at least one token), in the sequence of its number. Requires: `sequences`
// are as many as `prompts`, and empty. An answer that ends before its most tokens may leave a pass
// announced to `source` that is never made.
// BadInputError (empty prompt, vocabulary), UsageError (options), NumericalError, the errors of
// Extend.
absl::StatusOr<GenerateResult> Generate(Sequences& sequences, ParamSource& source,
                                        std::span<const std::vector<int32_t>> prompts,
                                        const GenerateOptions& options,
                                        const GenerationObserver& observer);

}  // namespace forebay
