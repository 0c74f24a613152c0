// Reverse-mode differentiation of small matrices in float64: the yardstick of the decoder's tests.
// Plain loops, one closure per operation, nothing shared with the code under test.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "forebay/data/micro_batch.h"

namespace forebay::reference {

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> value, grad;
  double& at(int64_t r, int64_t c) { return value[r * cols + c]; }
  double& grad_at(int64_t r, int64_t c) { return grad[r * cols + c]; }
};

struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // as DecoderConfig::window
  std::vector<Segment> segments;
};

// Operations record themselves; Backward walks them from last to first.
class Tape {
 public:
  Matrix* New(int64_t rows, int64_t cols);
  // x W^T for W [out, in]; x W for W [in, out].
  Matrix* Linear(Matrix* x, Matrix* weight, Matrix* bias, bool in_out);
  Matrix* Add(Matrix* a, Matrix* b);
  Matrix* Columns(Matrix* x, int64_t first, int64_t count);
  // Over groups of `weight->cols` columns.
  Matrix* RmsNorm(Matrix* x, Matrix* weight, double eps);
  Matrix* LayerNorm(Matrix* x, Matrix* weight, Matrix* bias, double eps);
  // Pairs (i, i + head_dim / 2) of each head turn by angle[row][i] and are multiplied by
  // `magnitude`.
  Matrix* Rotate(Matrix* x, int64_t head_dim, const std::vector<std::vector<double>>& angles,
                 double magnitude);
  Matrix* Attention(Matrix* q, Matrix* k, Matrix* v, const AttentionSpec& spec);
  Matrix* SiluTimes(Matrix* gate, Matrix* up);
  Matrix* GeluTanh(Matrix* x);
  Matrix* Rows(Matrix* table, std::span<const int32_t> rows);
  // Sum over the rows whose target is not -1 of -log softmax(row)[target], as [1, 1].
  Matrix* CrossEntropy(Matrix* logits, std::span<const int32_t> targets);

  // Gradients of `scale` * root [1, 1] into every matrix's grad.
  void Backward(Matrix* root, double scale);

 private:
  std::deque<Matrix> matrices_;
  std::vector<std::function<void()>> backward_;
};

}  // namespace forebay::reference
