// How much sequences on a GPU need of what. Private to this folder.
#pragma once

#include <cstdint>

#include "forebay/model/cuda_decoder/cuda_sequences.h"
#include "forebay/model/cuda_decoder/decoder_layout.h"
#include "forebay/model/cuda_decoder/sequence_cache.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// Numbers of a token that are copied to the GPU: id, row in the tables of positions, row in the
// cache, the two ends of its segment, and position.
inline constexpr int64_t kNumbersOfToken = 6;

// All in bytes, but for what is said.
struct CudaSequencesLayout {
  CudaSequencesLayout(const DecoderConfig& config, const CudaSequencesOptions& options);

  CudaDecoderLayout block;  // its workspace and scratch are what counts here
  int64_t num_rows = 0;     // of the cache: those of all sequences
  int64_t max_length = 0;   // of the longest, in tokens
  SequenceCacheShape cache;
  int64_t rope = 0;     // both tables
  int64_t numbers = 0;  // one for each token of a pass
  int64_t tokens = 0;
  int64_t logits = 0;
};

}  // namespace forebay
