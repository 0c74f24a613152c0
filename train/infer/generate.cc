#include "forebay/train/infer/generate.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

double PerSecond(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

absl::Status CheckPrompts(std::span<const std::vector<int32_t>> prompts,
                          const GenerateOptions& options) {
  if (options.max_tokens < 1) {
    return UsageError(
        fmt::format("--max_tokens={} generates nothing. Use at least 1", options.max_tokens));
  }
  if (std::ranges::any_of(prompts, &std::vector<int32_t>::empty)) {
    return BadInputError(
        "generate: the prompt has no tokens, and the model continues only what it is given. Pass "
        "some text with --prompt or --chat");
  }
  return absl::OkStatus();
}

// A source that is told of one pass more than whoever computes tells it, so that it reads the first
// layers of that pass while the last ones compute and a token is chosen.
class OnePassAhead final : public ParamSource {
 public:
  explicit OnePassAhead(ParamSource* source) : source_(*source) {}
  // Whether a pass like the next one follows it. Requires: a pass that was said to follow follows.
  void ExpectAnother(bool follows) { another_follows_ = follows; }

  void Expect(std::span<const int> layers) override {
    if (!std::exchange(is_ahead_, false)) source_.Expect(layers);
    if (!another_follows_) return;
    source_.Expect(layers);
    is_ahead_ = true;
  }
  absl::StatusOr<WeightsLease> Acquire(int layer) override { return source_.Acquire(layer); }

 protected:
  void Release(int /*layer*/, Event* /*done*/) override {
    FOREBAY_CHECK(false);  // leases are the inner source's
  }

 private:
  ParamSource& source_;
  bool another_follows_ = false;
  bool is_ahead_ = false;
};

// Tokens of an answer. The last one is never fed back, so it needs no position.
int64_t MostTokens(int64_t prompt_tokens, const GenerateOptions& options,
                   const DecoderConfig& config) {
  const int64_t room = std::max<int64_t>(1, config.max_positions - prompt_tokens + 1);
  return std::min(options.max_tokens, room);
}

// The answers as they grow.
class Answers {
 public:
  Answers(const DecoderConfig& config, std::span<const std::vector<int32_t>> prompts,
          const GenerateOptions& options, const GenerationObserver& observer)
      : options_(options), observer_(observer) {
    for (const std::vector<int32_t>& prompt : prompts) {
      const int64_t most = MostTokens(std::ssize(prompt), options, config);
      GeneratedTokens& answer = answers_.emplace_back();
      answer.prompt_tokens = std::ssize(prompt);
      answer.tokens.reserve(most);
      most_.push_back(most);
      most_of_all_ += most;
    }
  }
  // What is to be fed back then: the token, or nothing if the answer is complete.
  absl::StatusOr<std::span<const int32_t>> Add(size_t i, int32_t token) {
    GeneratedTokens& answer = answers_[i];
    answer.tokens.push_back(token);
    answer.ended = std::ranges::count(options_.eos_token_ids, token) > 0;
    if (observer_.on_token) {
      FOREBAY_ASSIGN_OR_RETURN(const bool is_stopped, observer_.on_token(i, token));
      answer.ended = answer.ended || is_stopped;
    }
    const int64_t left = most_[i] - std::ssize(answer.tokens);
    if (answer.ended) {
      most_of_all_ -= left;
      most_[i] -= left;
    }
    if (observer_.on_progress) observer_.on_progress(++num_tokens_, most_of_all_);
    return std::span<const int32_t>(answer.tokens).last(answer.ended || left == 0 ? 0 : 1);
  }
  // Whether any has more than so many tokens at most.
  bool CanGoOnAfter(int64_t num_tokens) const { return std::ranges::max(most_) > num_tokens; }
  std::vector<GeneratedTokens> Take() && { return std::move(answers_); }

 private:
  const GenerateOptions& options_;
  const GenerationObserver& observer_;
  std::vector<GeneratedTokens> answers_;
  std::vector<int64_t> most_;  // tokens, by answer
  int64_t most_of_all_ = 0;
  int64_t num_tokens_ = 0;  // of all
};

}  // namespace

double GenerateResult::PromptTokensPerSecond() const {
  int64_t tokens = 0;
  for (const GeneratedTokens& answer : answers) tokens += answer.prompt_tokens;
  return PerSecond(tokens, prompt_s);
}

double GenerateResult::TokensPerSecond() const {
  return PerSecond(num_tokens() - std::ssize(answers), generate_s);
}

int64_t GenerateResult::num_tokens() const {
  int64_t tokens = 0;
  for (const GeneratedTokens& answer : answers) tokens += std::ssize(answer.tokens);
  return tokens;
}

double GenerateResult::SecondsPerAnswer() const {
  return answers.empty() ? 0 : (prompt_s + generate_s) / static_cast<double>(answers.size());
}

int64_t GenerationLength(int64_t prompt_tokens, const GenerateOptions& options,
                         const DecoderConfig& config) {
  return prompt_tokens + MostTokens(prompt_tokens, options, config) - 1;
}

absl::StatusOr<GenerateResult> Generate(Sequences& sequences, ParamSource& source,
                                        std::span<const std::vector<int32_t>> prompts,
                                        const GenerateOptions& options,
                                        const GenerationObserver& observer) {
  FOREBAY_RETURN_IF_ERROR(CheckPrompts(prompts, options));
  FOREBAY_CHECK(prompts.size() == sequences.num_sequences());
  const auto vocab_size = static_cast<size_t>(sequences.config().vocab_size);
  FOREBAY_ASSIGN_OR_RETURN(TokenSampler sampler,
                           TokenSampler::Create(options.sampling, sequences.config().vocab_size));

  std::vector<float> logits(prompts.size() * vocab_size);
  std::vector<std::span<const int32_t>> next(prompts.begin(), prompts.end());
  Answers answers(sequences.config(), prompts, options, observer);
  // Chooses the token behind `next[i]`, which becomes that token, or empty at the answer's end.
  const auto choose = [&](size_t i) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const int32_t token,
                             sampler.Next(std::span(logits).subspan(i * vocab_size, vocab_size), i,
                                          sequences.length(i)));
    FOREBAY_ASSIGN_OR_RETURN(next[i], answers.Add(i, token));
    return absl::OkStatus();
  };
  OnePassAhead passes(&source);
  GenerateResult result;
  Stopwatch stopwatch;
  for (int64_t num_chosen = 0; !std::ranges::all_of(next, &std::span<const int32_t>::empty);
       ++num_chosen) {
    // The passes of the prompt are not like those of single tokens.
    passes.ExpectAnother(num_chosen > 0 && answers.CanGoOnAfter(num_chosen + 1));
    FOREBAY_RETURN_IF_ERROR(sequences.Extend(passes, next, logits));
    for (size_t i = 0; i < next.size(); ++i) {
      if (!next[i].empty()) FOREBAY_RETURN_IF_ERROR(choose(i));
    }
    if (num_chosen > 0) continue;
    result.prompt_s = stopwatch.Seconds();
    stopwatch.Restart();
  }
  result.generate_s = stopwatch.Seconds();
  result.answers = std::move(answers).Take();
  return result;
}

}  // namespace forebay
