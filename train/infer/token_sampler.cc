#include "forebay/train/infer/token_sampler.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// The index of the largest logit, the first of equals; -1 when there is none to choose.
int32_t Likeliest(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return -1;
    if (best < 0 || logits[i] > logits[best]) best = static_cast<int32_t>(i);
  }
  return best >= 0 && std::isfinite(logits[best]) ? best : -1;
}

}  // namespace

TokenSampler::TokenSampler(const SamplingOptions& options, int64_t vocab_size)
    : options_(options), candidates_(options.temperature > 0 ? vocab_size : 0) {}

absl::StatusOr<TokenSampler> TokenSampler::Create(const SamplingOptions& options,
                                                  int64_t vocab_size) {
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return UsageError(fmt::format(
        "--temperature={} is not a number of at least 0. Use 0 for the likeliest token, "
        "about 0.7 for variety",
        options.temperature));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return UsageError(fmt::format(
        "--top_p={} is not above 0 and at most 1. Use 1 to allow every token", options.top_p));
  }
  return TokenSampler(options, vocab_size);
}

size_t TokenSampler::PopNucleus(double total_weight) {
  // A heap, since a nucleus is a few tokens of a large vocabulary. Of equals the lower id comes
  // first.
  const auto less = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), less);
  size_t size = 0;
  double kept = 0;
  do {
    std::pop_heap(candidates_.begin(), candidates_.end() - size, less);
    ++size;
    kept += candidates_[candidates_.size() - size].weight;
  } while (size < candidates_.size() && kept < options_.top_p * total_weight);
  return size;
}

absl::StatusOr<int32_t> TokenSampler::Next(std::span<const float> logits, size_t sequence,
                                           int64_t position) {
  const int32_t best = Likeliest(logits);
  if (best < 0) {
    return NumericalError(
        fmt::format("generate: the logits at position {} are not finite. The model's weights hold "
                    "NaN or infinity, or overflow in this precision; look at them with 'forebay "
                    "inspect', or try --precision=fp32",
                    position));
  }
  if (options_.temperature == 0) return best;
  FOREBAY_CHECK(candidates_.size() == logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight =
        std::exp((double{logits[i]} - double{logits[best]}) / options_.temperature);
    candidates_[i] = {weight, static_cast<int32_t>(i)};
    total += weight;
  }
  size_t first = 0;
  if (options_.top_p < 1) {
    first = candidates_.size() - PopNucleus(total);
    total = 0;
    for (size_t i = first; i < candidates_.size(); ++i) total += candidates_[i].weight;
  }
  // Rounding can leave a little of `threshold` at the end, or meet tokens of no weight: neither may
  // be chosen by it.
  double threshold =
      CounterRng(options_.seed, sequence).Uniform(static_cast<uint64_t>(position)) * total;
  int32_t chosen = best;
  for (size_t i = first; i < candidates_.size(); ++i) {
    if (candidates_[i].weight == 0) continue;
    chosen = candidates_[i].token;
    threshold -= candidates_[i].weight;
    if (threshold < 0) break;
  }
  return chosen;
}

}  // namespace forebay
