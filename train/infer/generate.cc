#include "forebay/train/infer/generate.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"

namespace forebay {

double GenerateResult::PromptTokensPerSecond() const {
  return prompt_s > 0 ? static_cast<double>(prompt_tokens) / prompt_s : 0;
}

double GenerateResult::TokensPerSecond() const {
  return tokens.size() > 1 && generate_s > 0 ? static_cast<double>(tokens.size() - 1) / generate_s
                                             : 0;
}

int64_t GenerationLength(int64_t prompt_tokens, const GenerateOptions& options) {
  return prompt_tokens + options.max_tokens - 1;
}

absl::StatusOr<GenerateResult> Generate(
    Decoder& decoder, ParamSource& source, std::span<const int32_t> prompt,
    const GenerateOptions& options, MemoryBudget* budget,
    const std::function<absl::Status(int32_t token)>& on_token) {
  if (options.max_tokens < 1) {
    return UsageError(
        fmt::format("--max_tokens={} generates nothing. Use at least 1", options.max_tokens));
  }
  if (prompt.empty()) {
    return BadInputError(
        "generate: the prompt has no tokens, and the model continues only what it is given. Pass "
        "some text with --prompt or --chat");
  }
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t vocab_size = decoder.config().vocab_size;
  FOREBAY_ASSIGN_OR_RETURN(TokenSampler sampler,
                           TokenSampler::Create(options.sampling, vocab_size));
  FOREBAY_ASSIGN_OR_RETURN(
      KvCache cache,
      KvCache::Create(budget, decoder.config(), GenerationLength(prompt_tokens, options)));

  std::vector<float> logits(vocab_size);
  GenerateResult result;
  result.prompt_tokens = prompt_tokens;
  result.tokens.reserve(options.max_tokens);
  std::span<const int32_t> next = prompt;
  Stopwatch stopwatch;
  while (true) {
    FOREBAY_RETURN_IF_ERROR(decoder.Extend(source, next, cache, logits));
    FOREBAY_ASSIGN_OR_RETURN(const int32_t token, sampler.Next(logits, cache.length()));
    result.tokens.push_back(token);
    if (result.tokens.size() == 1) {
      result.prompt_s = stopwatch.Seconds();
      stopwatch.Restart();
    }
    if (on_token) FOREBAY_RETURN_IF_ERROR(on_token(token));
    const auto& stops = options.eos_token_ids;
    result.ended = std::find(stops.begin(), stops.end(), token) != stops.end();
    if (result.ended || static_cast<int64_t>(result.tokens.size()) == options.max_tokens) break;
    next = {&result.tokens.back(), 1};
  }
  result.generate_s = stopwatch.Seconds();
  return result;
}

}  // namespace forebay
