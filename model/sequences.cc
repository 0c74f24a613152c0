#include "forebay/model/sequences.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

class CpuSequences final : public Sequences {
 public:
  CpuSequences(Decoder* decoder, std::vector<KvCache> caches)
      : decoder_(*decoder), caches_(std::move(caches)) {}

  const DecoderConfig& config() const override { return decoder_.config(); }
  size_t num_sequences() const override { return caches_.size(); }
  int64_t length(size_t sequence) const override { return caches_[sequence].length(); }
  absl::Status Extend(ParamSource& source, TokensOfSequences tokens,
                      std::span<float> logits) override {
    return decoder_.Extend(source, tokens, caches_, logits);
  }

 private:
  Decoder& decoder_;
  std::vector<KvCache> caches_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sequences>> CreateCpuSequences(Decoder* decoder,
                                                              std::span<const int64_t> max_lengths,
                                                              MemoryBudget* budget) {
  std::vector<KvCache> caches;
  for (const int64_t max_length : max_lengths) {
    FOREBAY_ASSIGN_OR_RETURN(caches.emplace_back(),
                             KvCache::Create(budget, decoder->config(), max_length));
  }
  return std::make_unique<CpuSequences>(decoder, std::move(caches));
}

SequencePasses::SequencePasses(TokensOfSequences tokens, int64_t max_tokens)
    : tokens_(tokens), max_tokens_(max_tokens) {
  FOREBAY_CHECK(max_tokens > 0);
}

bool SequencePasses::Next(std::vector<SequencePart>& parts) {
  parts.clear();
  int64_t room = max_tokens_;
  while (room > 0 && sequence_ < tokens_.size()) {
    const std::span<const int32_t> left = tokens_[sequence_].subspan(begin_);
    const int64_t count = std::min(room, std::ssize(left));
    const bool is_last = count == std::ssize(left);
    if (count > 0) parts.push_back({sequence_, left.first(count), is_last});
    room -= count;
    begin_ = is_last ? 0 : begin_ + count;
    sequence_ += is_last ? 1 : 0;
  }
  return !parts.empty();
}

bool WantsLogits(std::span<const SequencePart> parts) {
  return std::ranges::any_of(parts, &SequencePart::is_last);
}

absl::Status CheckExtension(const DecoderConfig& config, std::span<const int32_t> tokens,
                            int64_t length, int64_t max_length) {
  const int64_t num_tokens = std::ssize(tokens);
  if (length + num_tokens > max_length) {
    return BadInputError(fmt::format(
        "generate: {} tokens do not fit behind the {} that the sequence has: it ends at "
        "{} positions. Shorten the prompt or lower --max_tokens",
        num_tokens, length, max_length));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return BadInputError(
          fmt::format("generate: token {} is outside the model's vocabulary of {}. Use the "
                      "tokenizer that belongs to the model",
                      token, config.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMaxLength(const DecoderConfig& config, int64_t max_length) {
  if (max_length <= config.max_positions) return absl::OkStatus();
  return BadInputError(
      fmt::format("generate: prompt and answer would take {} positions, but the model has {} "
                  "('max_position_embeddings' of its config.json). Shorten the prompt or lower "
                  "--max_tokens",
                  max_length, config.max_positions));
}

}  // namespace forebay
