// What the model computes with: some packed rows of tokens, flattened.
#pragma once

#include <cstdint>
#include <vector>

namespace forebay {

// A run of tokens of one sample within one row. Attention never crosses segments; positions restart
// at 0.
struct Segment {
  int64_t begin = 0;  // index into MicroBatch::tokens
  int64_t length = 0;
};

struct MicroBatch {
  std::vector<int32_t> tokens;  // [rows * seq], rows one after another, padding included
  // targets[i]: the token to predict at i (that is, tokens[i + 1] of the same segment), or -1 where
  // nothing is trained.
  std::vector<int32_t> targets;    // same length
  std::vector<int32_t> positions;  // same length: index within the segment
  std::vector<Segment> segments;   // ascending, disjoint; padding belongs to no segment
  int64_t num_trained = 0;         // targets that are not -1
  int64_t num_tokens = 0;          // tokens that are not padding
  int part = 0;                    // of several that are computed side by side (--data_parallel)
};

}  // namespace forebay
