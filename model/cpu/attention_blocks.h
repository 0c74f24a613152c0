// One head's attention over one block of queries: what the tasks of attention.cc are made of.
#pragma once

#include <cstdint>

#include "forebay/model/cpu/scratch.h"

namespace forebay::cpu {

// Queries of one task, and keys whose scores are kept at a time: a block of scores stays in the
// second-level cache, and scratch does not grow with the sequence.
inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyBlock = 512;
inline constexpr int64_t kScoreElems = kQueryBlock * kKeyBlock;

// Keys [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// One head of one sequence. Row i of q and o is the query at position first_position + i; row j of
// k and v the key at position j. Rows are `head_dim` long, one `query_stride` (`key_stride`) after
// the other.
struct HeadView {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t query_stride = 0, key_stride = 0;
  int64_t head_dim = 0;
  int64_t first_position = 0;
  int64_t window = 0;  // 0: all
  float scale = 0;

  // Keys that query `i` sees, and those that some query of [begin, end) sees.
  KeyRange Visible(int64_t i) const {
    const int64_t position = first_position + i;
    return {window == 0 || position < window ? 0 : position - window + 1, position + 1};
  }
  KeyRange Visible(int64_t begin, int64_t end) const {
    return {Visible(begin).begin, Visible(end - 1).end};
  }
};

// o [begin, end) = softmax(scale * q k^T) v; log_sum_exp[i] for i in [begin, end), unless nullptr.
// At most kQueryBlock queries.
void AttendBlock(const HeadView& view, int64_t begin, int64_t end, Scratch& scratch, float* o,
                 float* log_sum_exp);

// Row strides as in the view; nullptr where a gradient is not wanted.
struct HeadGradients {
  const float* o = nullptr;
  const float* d_o = nullptr;
  const float* log_sum_exp = nullptr;
  float* dq = nullptr;  // (+)=
  float* dk = nullptr;  // +=
  float* dv = nullptr;  // +=
};
// The share of queries [begin, end) and keys `keys` (at most kKeyBlock) in the gradients. dq is
// overwritten unless `accumulate_dq`.
void AttendBlockGradient(const HeadView& view, const HeadGradients& gradients, int64_t begin,
                         int64_t end, KeyRange keys, bool accumulate_dq, Scratch& scratch);

}  // namespace forebay::cpu
