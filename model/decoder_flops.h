// The arithmetic of a decoder's step: two operations for a multiplication and its addition. Pure.
#pragma once

#include <cstdint>

#include "forebay/model/decoder_config.h"
#include "forebay/model/recompute.h"

namespace forebay {

struct DecoderFlops {
  double forward = 0;
  // Gradients of activations and weights, which take twice as much as forward does, and the
  // products that are computed again. A block needs its last product again only where that is the
  // next one's input (BlockRecompute::GoesForwardTwice). The head is computed again for gradients
  // in parts, and on a CPU for those of a vocabulary that is cut (VocabularyCut).
  double backward = 0;
};
// `tokens` in rows of `seq` of them. Products of matrices and attention: what is left is bound by
// memory. Attention counts the keys that a query sees.
DecoderFlops FlopsOf(const DecoderConfig& config, int64_t tokens, int64_t seq,
                     const BlockRecompute& recompute = {}, bool on_cpu = false);

}  // namespace forebay
