#include "forebay/model/cpu/attention_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "forebay/model/cpu/gemm.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {
namespace {

// Below this many queries a product is too thin for a GEMM.
constexpr int64_t kFewQueries = 4;

// What of a row's scores in `keys` is visible, relative to keys.begin.
KeyRange VisiblePart(const HeadView& view, int64_t query, KeyRange keys) {
  const KeyRange visible = view.Visible(query);
  const int64_t begin = std::clamp(visible.begin - keys.begin, int64_t{0}, keys.size());
  return {begin, std::clamp(visible.end - keys.begin, begin, keys.size())};
}

void ZeroOutside(KeyRange part, int64_t size, float* row) {
  std::fill(row, row + part.begin, 0.0f);
  std::fill(row + part.end, row + size, 0.0f);
}

// scores [queries, keys] (row stride kKeyBlock) = alpha * rows * columns^T.
void Scores(const HeadView& view, const float* rows, const float* columns, int64_t num_queries,
            int64_t num_keys, float alpha, float* scores) {
  if (num_queries <= kFewQueries) {
    for (int64_t query = 0; query < num_queries; ++query) {
      for (int64_t key = 0; key < num_keys; ++key) {
        scores[query * kKeyBlock + key] =
            alpha * kernels::Dot(rows + query * view.query_stride, columns + key * view.key_stride,
                                 view.head_dim);
      }
    }
    return;
  }
  SingleThreadGemm({.m = num_queries,
                    .n = num_keys,
                    .k = view.head_dim,
                    .transpose_b = true,
                    .lda = view.query_stride,
                    .ldb = view.key_stride,
                    .ldc = kKeyBlock},
                   alpha, rows, columns, scores);
}

// out [queries, head_dim] (+)= weights [queries, keys] * values [keys, head_dim].
void WeightedSum(const HeadView& view, const float* weights, const float* values,
                 int64_t num_queries, int64_t num_keys, bool accumulate, float* out) {
  if (num_queries <= kFewQueries) {
    for (int64_t query = 0; query < num_queries; ++query) {
      float* row = out + query * view.query_stride;
      if (!accumulate) std::fill_n(row, view.head_dim, 0.0f);
      for (int64_t key = 0; key < num_keys; ++key) {
        kernels::AddScaled(weights[query * kKeyBlock + key], values + key * view.key_stride,
                           view.head_dim, row);
      }
    }
    return;
  }
  SingleThreadGemm({.m = num_queries,
                    .n = view.head_dim,
                    .k = num_keys,
                    .accumulate = accumulate,
                    .lda = kKeyBlock,
                    .ldb = view.key_stride,
                    .ldc = view.query_stride},
                   1.0f, weights, values, out);
}

// out [keys, head_dim] += weights^T [keys, queries] * rows [queries, head_dim].
void AddTransposedSum(const HeadView& view, const float* weights, const float* rows,
                      int64_t num_queries, int64_t num_keys, float* out) {
  SingleThreadGemm({.m = num_keys,
                    .n = view.head_dim,
                    .k = num_queries,
                    .transpose_a = true,
                    .accumulate = true,
                    .lda = kKeyBlock,
                    .ldb = view.query_stride,
                    .ldc = view.key_stride},
                   1.0f, weights, rows, out);
}

// A row's softmax so far, over the key blocks seen (Milakov & Gimelshein 2018, "Online normalizer
// calculation").
struct RunningSoftmax {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;

  // Turns scores into exp(score - new max); returns the factor for what was summed under the old
  // one.
  float Absorb(float* scores, int64_t count) {
    const float new_max = std::max(max, kernels::Max(scores, count));
    const float factor = sum == 0 ? 0.0f : std::exp(max - new_max);
    sum = sum * factor + kernels::ExpInPlace(new_max, count, scores);
    max = new_max;
    return factor;
  }
};

}  // namespace

void AttendBlock(const HeadView& view, int64_t begin, int64_t end, Scratch& scratch, float* o,
                 float* log_sum_exp) {
  const KeyRange visible = view.Visible(begin, end);
  const int64_t num_queries = end - begin;
  float* scores = scratch.Get<float>(Slot::kScores, kScoreElems);
  RunningSoftmax rows[kQueryBlock];
  for (int64_t key = visible.begin; key < visible.end; key += kKeyBlock) {
    const KeyRange keys{key, std::min(key + kKeyBlock, visible.end)};
    Scores(view, view.q + begin * view.query_stride, view.k + key * view.key_stride, num_queries,
           keys.size(), view.scale, scores);
    for (int64_t i = 0; i < num_queries; ++i) {
      float* row = scores + i * kKeyBlock;
      const KeyRange part = VisiblePart(view, begin + i, keys);
      ZeroOutside(part, keys.size(), row);
      if (part.size() == 0) continue;
      const float factor = rows[i].Absorb(row + part.begin, part.size());
      if (key != visible.begin && factor != 1.0f) {
        kernels::Scale(factor, view.head_dim, o + (begin + i) * view.query_stride);
      }
    }
    WeightedSum(view, scores, view.v + key * view.key_stride, num_queries, keys.size(),
                key != visible.begin, o + begin * view.query_stride);
  }
  for (int64_t i = 0; i < num_queries; ++i) {
    kernels::Scale(1.0f / rows[i].sum, view.head_dim, o + (begin + i) * view.query_stride);
    if (log_sum_exp != nullptr) log_sum_exp[begin + i] = rows[i].max + std::log(rows[i].sum);
  }
}

void AttendBlockGradient(const HeadView& view, const HeadGradients& gradients, int64_t begin,
                         int64_t end, KeyRange keys, bool accumulate_dq, Scratch& scratch) {
  const int64_t num_queries = end - begin;
  float* p = scratch.Get<float>(Slot::kScores, kScoreElems);
  float* ds = scratch.Get<float>(Slot::kScoreGradient, kScoreElems);
  const int64_t query_offset = begin * view.query_stride;
  const int64_t key_offset = keys.begin * view.key_stride;
  Scores(view, view.q + query_offset, view.k + key_offset, num_queries, keys.size(), view.scale, p);
  Scores(view, gradients.d_o + query_offset, view.v + key_offset, num_queries, keys.size(), 1.0f,
         ds);
  for (int64_t i = 0; i < num_queries; ++i) {
    const int64_t row_offset = query_offset + i * view.query_stride;
    const float delta =
        kernels::Dot(gradients.d_o + row_offset, gradients.o + row_offset, view.head_dim);
    float* p_row = p + i * kKeyBlock;
    float* ds_row = ds + i * kKeyBlock;
    const KeyRange part = VisiblePart(view, begin + i, keys);
    kernels::ScaledExpInPlace(gradients.log_sum_exp[begin + i], 1.0f, part.size(),
                              p_row + part.begin);
    kernels::SoftmaxGradient(p_row + part.begin, delta, view.scale, part.size(),
                             ds_row + part.begin);
    ZeroOutside(part, keys.size(), p_row);
    ZeroOutside(part, keys.size(), ds_row);
  }
  if (gradients.dv != nullptr) {
    AddTransposedSum(view, p, gradients.d_o + query_offset, num_queries, keys.size(),
                     gradients.dv + key_offset);
  }
  if (gradients.dk != nullptr) {
    AddTransposedSum(view, ds, view.q + query_offset, num_queries, keys.size(),
                     gradients.dk + key_offset);
  }
  if (gradients.dq != nullptr) {
    WeightedSum(view, ds, view.k + key_offset, num_queries, keys.size(), accumulate_dq,
                gradients.dq + query_offset);
  }
}

}  // namespace forebay::cpu
