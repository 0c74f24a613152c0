// Chooses the next token from logits. The choice depends on the logits, the seed, the sequence and
// the position alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace forebay {

struct SamplingOptions {
  double temperature =
      0;  // 0: the likeliest token (of equals the lowest id), whatever top_p and seed say
  double top_p =
      1;  // only the likeliest tokens that together have at least this probability; in (0, 1]
  uint64_t seed = 0;
};

// Owned by one thread.
class TokenSampler {
 public:
  // UsageError for a negative or non-finite temperature and for top_p outside (0, 1].
  static absl::StatusOr<TokenSampler> Create(const SamplingOptions& options, int64_t vocab_size);

  // `logits`: [vocab_size]. `sequence`: its number, so that equal prompts have different answers.
  // `position`: of the token to choose. Source of top-p: Holtzman et al.
  // 2020 (arXiv:1904.09751); the token that crosses the threshold is kept, as in transformers.
  // NumericalError when no logit is finite or one is NaN.
  absl::StatusOr<int32_t> Next(std::span<const float> logits, size_t sequence, int64_t position);

 private:
  struct Candidate {
    double weight = 0;  // exp((logit - max) / temperature)
    int32_t token = 0;
  };
  TokenSampler(const SamplingOptions& options, int64_t vocab_size);
  // Moves the nucleus to the end of candidates_, likeliest last, and returns its size.
  size_t PopNucleus(double total_weight);

  SamplingOptions options_;
  std::vector<Candidate> candidates_;  // allocated once
};

}  // namespace forebay
