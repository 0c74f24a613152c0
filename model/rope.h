// Rotary position embeddings (Su et al. 2021, arXiv:2104.09864): the angles that each scaling
// gives, as tables. Applying them is an operator (cpu/ops.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/model/decoder_config.h"

namespace forebay {

// Angle of pair i at position p: p * inv_freq[i]. Same arithmetic (fp32, same order) as
// transformers 5's modeling_rope_utils.py, so that both agree to the last bits also where positions
// are large.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [head_dim / 2]
  float attention_factor = 1;   // multiplies cos and sin (yarn)
};
// Of a sequence of so many tokens, which longrope asks for. Requires: head_dim even and positive, a
// config that ParseDecoderConfig made.
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int64_t head_dim,
                                       int64_t sequence_tokens);

// cos and sin, each [length, head_dim / 2] fp32, row-major, written. Requires: both spans have that
// many elements.
void FillRopeTables(const RopeFrequencies& frequencies, int64_t length, std::span<float> cos,
                    std::span<float> sin);

// ---- Tables for sequences of several lengths ----------------------------------------------------
// Position p of a sequence has the row FirstRopeRow + p: with longrope, long sequences have rows of
// their own, behind those of the short ones.

// Rows for all sequences of at most `max_tokens`.
int64_t NumRopeRows(const RopeConfig& config, int64_t max_tokens);
int64_t FirstRopeRow(const RopeConfig& config, int64_t sequence_tokens);
// cos and sin, each [NumRopeRows, head_dim / 2], written.
void FillRopeRows(const RopeConfig& config, int64_t head_dim, int64_t max_tokens,
                  std::span<float> cos, std::span<float> sin);

struct RopeTables {
  int64_t head_dim = 0;
  int64_t length = 0;
  std::vector<float> cos, sin;  // [length, head_dim / 2]
};
// Requires: 0 <= length <= max_positions, those of the config: what is beyond them was never
// trained.
RopeTables BuildRopeTables(const RopeConfig& config, int64_t head_dim, int64_t max_positions,
                           int64_t length);

}  // namespace forebay
