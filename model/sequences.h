// Sequences that grow: what generation asks of a model, whoever computes it. Each sequence has its
// keys and values cached, so that only new tokens go through the layers; those of all sequences go
// together, as each pass may read every weight from a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_config.h"
#include "forebay/step/param_source.h"

namespace forebay {

// Owned by one thread.
class Sequences {
 public:
  virtual ~Sequences() = default;
  virtual const DecoderConfig& config() const = 0;
  virtual size_t num_sequences() const = 0;
  virtual int64_t length(size_t sequence) const = 0;

  // Appends `tokens` to their sequences, and writes to `logits` [num_sequences, vocab] what follows
  // the last of each; the row of a sequence without new tokens is left as it is. Announces to
  // `source` the layers that it acquires. BadInputError where a sequence has no room for its
  // tokens, or one is outside the vocabulary; the source's errors, and the device's. After an error
  // the sequences are as before.
  virtual absl::Status Extend(ParamSource& source, TokensOfSequences tokens,
                              std::span<float> logits) = 0;
};

// On the CPU. `decoder` and `budget`, which pays for the caches, outlive it. `max_lengths`: tokens
// of each sequence, at most. BadInputError where that is more than the model's positions,
// OutOfMemoryError.
absl::StatusOr<std::unique_ptr<Sequences>> CreateCpuSequences(Decoder* decoder,
                                                              std::span<const int64_t> max_lengths,
                                                              MemoryBudget* budget);

// ---- For whoever implements it ------------------------------------------------------------------

// Tokens of one sequence that go through the layers in one pass.
struct SequencePart {
  size_t sequence = 0;
  std::span<const int32_t> tokens;
  bool is_last = false;  // what follows them is asked for
};
// Cuts `tokens` into passes of at most `max_tokens`, each sequence's in their order.
class SequencePasses {
 public:
  SequencePasses(TokensOfSequences tokens, int64_t max_tokens);
  // The parts of the next pass, in `parts`, which keeps its memory; false: there is none.
  bool Next(std::vector<SequencePart>& parts);

 private:
  const TokensOfSequences tokens_;
  const int64_t max_tokens_;
  size_t sequence_ = 0;
  int64_t begin_ = 0;  // of what is left of it
};
// Whether a pass asks for what follows.
bool WantsLogits(std::span<const SequencePart> parts);

// The errors of Extend, for one sequence of `length` tokens.
absl::Status CheckExtension(const DecoderConfig& config, std::span<const int32_t> tokens,
                            int64_t length, int64_t max_length);
// BadInputError where a sequence would be longer than the model's positions.
absl::Status CheckMaxLength(const DecoderConfig& config, int64_t max_length);

}  // namespace forebay
