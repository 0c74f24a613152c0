#include "forebay/train/speeds/measured_block.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/clock.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr double kSecondsOfTurn = 0.5;
constexpr int64_t kMostVocab = 1024;
constexpr size_t kRandomElems = 4096;  // they are repeated

void FillOne(DType dtype, std::byte* to, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t half = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
  std::memcpy(to, &half, sizeof(half));
}

}  // namespace

MeasuredTokens TokensToMeasure(const TrainOptions& options, int64_t most_tokens) {
  const int64_t seq = std::min(options.seq, most_tokens);
  return {.rows = std::clamp<int64_t>(most_tokens / seq, 1, options.batch), .seq = seq};
}

MicroBatch BatchOf(const MeasuredTokens& tokens) {
  MicroBatch batch;
  for (int64_t row = 0; row < tokens.rows; ++row) {
    batch.segments.push_back({.begin = row * tokens.seq, .length = tokens.seq});
    for (int64_t i = 0; i < tokens.seq; ++i) batch.positions.push_back(static_cast<int32_t>(i));
  }
  batch.tokens.resize(batch.positions.size(), 0);
  batch.targets.resize(batch.positions.size(), 0);
  batch.num_tokens = batch.num_trained = tokens.num_tokens();
  return batch;
}

DecoderConfig OneBlockOf(DecoderConfig config) {
  config.num_layers = 1;
  config.vocab_size = std::min(config.vocab_size, kMostVocab);
  if (!config.window.empty()) config.window.resize(1);
  return config;
}

void FillRandom(DType dtype, std::span<std::byte> to) {
  const CounterRng rng(/*seed=*/1);
  const auto size = static_cast<size_t>(SizeOf(dtype));
  const size_t pattern = std::min(kRandomElems * size, to.size() / size * size);
  for (size_t i = 0; i < pattern / size; ++i) {
    FillOne(dtype, to.data() + i * size, 0.02f * static_cast<float>(rng.Normal(i)));
  }
  for (size_t at = pattern; at < to.size(); at += pattern) {
    std::memcpy(to.data() + at, to.data(), std::min(pattern, to.size() - at));
  }
}

absl::StatusOr<double> MedianSeconds(const std::function<bool()>& stop,
                                     const std::function<absl::Status()>& call) {
  FOREBAY_RETURN_IF_ERROR(call());
  const Stopwatch all;
  std::vector<double> seconds;
  while (seconds.empty() || all.Seconds() < kSecondsOfTurn) {
    if (stop()) return InterruptedError("stopped on request");
    const Stopwatch one;
    FOREBAY_RETURN_IF_ERROR(call());
    seconds.push_back(one.Seconds());
  }
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

}  // namespace forebay
