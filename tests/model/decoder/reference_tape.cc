#include "forebay/tests/model/decoder/reference_tape.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace forebay::reference {

Matrix* Tape::New(int64_t rows, int64_t cols) {
  Matrix& matrix = matrices_.emplace_back();
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.value.assign(rows * cols, 0.0);
  matrix.grad.assign(rows * cols, 0.0);
  return &matrix;
}

Matrix* Tape::Linear(Matrix* x, Matrix* weight, Matrix* bias, bool in_out) {
  const int64_t in = x->cols;
  const int64_t out = in_out ? weight->cols : weight->rows;
  Matrix* const y = New(x->rows, out);
  const auto index = [=](int64_t o, int64_t i) { return in_out ? i * out + o : o * in + i; };
  for (int64_t r = 0; r < x->rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias == nullptr ? 0.0 : bias->value[o];
      for (int64_t i = 0; i < in; ++i) sum += x->at(r, i) * weight->value[index(o, i)];
      y->at(r, o) = sum;
    }
  }
  backward_.push_back([=] {
    for (int64_t r = 0; r < x->rows; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        const double dy = y->grad_at(r, o);
        if (bias != nullptr) bias->grad[o] += dy;
        for (int64_t i = 0; i < in; ++i) {
          x->grad_at(r, i) += dy * weight->value[index(o, i)];
          weight->grad[index(o, i)] += dy * x->at(r, i);
        }
      }
    }
  });
  return y;
}

Matrix* Tape::Add(Matrix* a, Matrix* b) {
  Matrix* const y = New(a->rows, a->cols);
  for (size_t i = 0; i < y->value.size(); ++i) y->value[i] = a->value[i] + b->value[i];
  backward_.push_back([=] {
    for (size_t i = 0; i < y->grad.size(); ++i) {
      a->grad[i] += y->grad[i];
      b->grad[i] += y->grad[i];
    }
  });
  return y;
}

Matrix* Tape::Columns(Matrix* x, int64_t first, int64_t count) {
  Matrix* const y = New(x->rows, count);
  for (int64_t r = 0; r < x->rows; ++r) {
    for (int64_t c = 0; c < count; ++c) y->at(r, c) = x->at(r, first + c);
  }
  backward_.push_back([=] {
    for (int64_t r = 0; r < x->rows; ++r) {
      for (int64_t c = 0; c < count; ++c) x->grad_at(r, first + c) += y->grad_at(r, c);
    }
  });
  return y;
}

Matrix* Tape::RmsNorm(Matrix* x, Matrix* weight, double eps) {
  const int64_t width = weight->cols;
  const int64_t groups = x->rows * x->cols / width;
  Matrix* const y = New(x->rows, x->cols);
  std::vector<double> inverse(groups);
  for (int64_t g = 0; g < groups; ++g) {
    const double* const row = &x->value[g * width];
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += row[i] * row[i];
    inverse[g] = 1 / std::sqrt(squares / width + eps);
    for (int64_t i = 0; i < width; ++i) {
      y->value[g * width + i] = row[i] * inverse[g] * weight->value[i];
    }
  }
  backward_.push_back([=] {
    for (int64_t g = 0; g < groups; ++g) {
      double dot = 0;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = g * width + i;
        dot += y->grad[at] * weight->value[i] * x->value[at];
        weight->grad[i] += y->grad[at] * x->value[at] * inverse[g];
      }
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = g * width + i;
        x->grad[at] += inverse[g] * y->grad[at] * weight->value[i] -
                       std::pow(inverse[g], 3) * dot * x->value[at] / width;
      }
    }
  });
  return y;
}

Matrix* Tape::LayerNorm(Matrix* x, Matrix* weight, Matrix* bias, double eps) {
  const int64_t width = x->cols;
  Matrix* const y = New(x->rows, width);
  Matrix* const unit = New(x->rows, width);  // (x - mean) / std
  std::vector<double> inverse(x->rows);
  for (int64_t r = 0; r < x->rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i) mean += x->at(r, i) / width;
    for (int64_t i = 0; i < width; ++i) variance += std::pow(x->at(r, i) - mean, 2) / width;
    inverse[r] = 1 / std::sqrt(variance + eps);
    for (int64_t i = 0; i < width; ++i) {
      unit->at(r, i) = (x->at(r, i) - mean) * inverse[r];
      y->at(r, i) = unit->at(r, i) * weight->value[i] + bias->value[i];
    }
  }
  backward_.push_back([=] {
    for (int64_t r = 0; r < x->rows; ++r) {
      double mean = 0, along = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double dunit = y->grad_at(r, i) * weight->value[i];
        mean += dunit / width;
        along += dunit * unit->at(r, i) / width;
        weight->grad[i] += y->grad_at(r, i) * unit->at(r, i);
        bias->grad[i] += y->grad_at(r, i);
      }
      for (int64_t i = 0; i < width; ++i) {
        const double dunit = y->grad_at(r, i) * weight->value[i];
        x->grad_at(r, i) += inverse[r] * (dunit - mean - unit->at(r, i) * along);
      }
    }
  });
  return y;
}

Matrix* Tape::Rotate(Matrix* x, int64_t head_dim, const std::vector<std::vector<double>>& angles,
                     double magnitude) {
  const int64_t half = head_dim / 2;
  Matrix* const y = New(x->rows, x->cols);
  // Turns `in` by the angles (forward) or back (sign -1: the transpose), adding to `out`.
  const auto turn = [=](const std::vector<double>& in, std::vector<double>& out, double sign) {
    for (int64_t r = 0; r < x->rows; ++r) {
      for (int64_t first = r * x->cols; first < (r + 1) * x->cols; first += head_dim) {
        for (int64_t i = 0; i < half; ++i) {
          const double c = magnitude * std::cos(angles[r][i]);
          const double s = sign * magnitude * std::sin(angles[r][i]);
          out[first + i] += in[first + i] * c - in[first + half + i] * s;
          out[first + half + i] += in[first + half + i] * c + in[first + i] * s;
        }
      }
    }
  };
  turn(x->value, y->value, 1);
  backward_.push_back([=] { turn(y->grad, x->grad, -1); });
  return y;
}

Matrix* Tape::Attention(Matrix* q, Matrix* k, Matrix* v, const AttentionSpec& spec) {
  const int64_t tokens = q->rows, dim = spec.head_dim;
  Matrix* const y = New(tokens, q->cols);
  // probability[head][i, j], zero where j is not visible to i.
  std::vector<Matrix*> probability;
  for (int64_t h = 0; h < spec.heads; ++h) probability.push_back(New(tokens, tokens));
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const int64_t share = spec.heads / spec.kv_heads;
  for (const Segment& segment : spec.segments) {
    for (int64_t h = 0; h < spec.heads; ++h) {
      Matrix* const p = probability[h];
      for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
        double sum = 0;
        for (int64_t j = segment.begin; j <= i; ++j) {
          if (spec.window > 0 && i - j >= spec.window) continue;
          double score = 0;
          for (int64_t d = 0; d < dim; ++d)
            score += q->at(i, h * dim + d) * k->at(j, h / share * dim + d);
          p->at(i, j) = std::exp(score * scale);
          sum += p->at(i, j);
        }
        for (int64_t j = segment.begin; j <= i; ++j) {
          p->at(i, j) /= sum;
          for (int64_t d = 0; d < dim; ++d) {
            y->at(i, h * dim + d) += p->at(i, j) * v->at(j, h / share * dim + d);
          }
        }
      }
    }
  }
  backward_.push_back([=] {
    for (int64_t h = 0; h < static_cast<int64_t>(probability.size()); ++h) {
      Matrix* const p = probability[h];
      const int64_t q0 = h * dim, k0 = h / share * dim;
      for (int64_t i = 0; i < tokens; ++i) {
        std::vector<double> dp(tokens, 0.0);
        double mean = 0;
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t d = 0; d < dim; ++d) {
            dp[j] += y->grad_at(i, q0 + d) * v->at(j, k0 + d);
            v->grad_at(j, k0 + d) += y->grad_at(i, q0 + d) * p->at(i, j);
          }
          mean += dp[j] * p->at(i, j);
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double dscore = p->at(i, j) * (dp[j] - mean) * scale;
          for (int64_t d = 0; d < dim; ++d) {
            q->grad_at(i, q0 + d) += dscore * k->at(j, k0 + d);
            k->grad_at(j, k0 + d) += dscore * q->at(i, q0 + d);
          }
        }
      }
    }
  });
  return y;
}

Matrix* Tape::SiluTimes(Matrix* gate, Matrix* up) {
  Matrix* const y = New(gate->rows, gate->cols);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (size_t i = 0; i < y->value.size(); ++i) {
    y->value[i] = gate->value[i] * sigmoid(gate->value[i]) * up->value[i];
  }
  backward_.push_back([=] {
    for (size_t i = 0; i < y->value.size(); ++i) {
      const double g = gate->value[i], s = sigmoid(g);
      gate->grad[i] += y->grad[i] * up->value[i] * (s + g * s * (1 - s));
      up->grad[i] += y->grad[i] * g * s;
    }
  });
  return y;
}

Matrix* Tape::GeluTanh(Matrix* x) {
  const double c = std::sqrt(2 / std::numbers::pi);
  Matrix* const y = New(x->rows, x->cols);
  for (size_t i = 0; i < y->value.size(); ++i) {
    const double a = x->value[i];
    y->value[i] = 0.5 * a * (1 + std::tanh(c * (a + 0.044715 * a * a * a)));
  }
  backward_.push_back([=] {
    for (size_t i = 0; i < y->value.size(); ++i) {
      const double a = x->value[i];
      const double t = std::tanh(c * (a + 0.044715 * a * a * a));
      const double slope = c * (1 + 3 * 0.044715 * a * a);
      x->grad[i] += y->grad[i] * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * slope);
    }
  });
  return y;
}

Matrix* Tape::Rows(Matrix* table, std::span<const int32_t> rows) {
  Matrix* const y = New(static_cast<int64_t>(rows.size()), table->cols);
  const std::vector<int32_t> picked(rows.begin(), rows.end());
  for (int64_t r = 0; r < y->rows; ++r) {
    for (int64_t c = 0; c < y->cols; ++c) y->at(r, c) = table->at(picked[r], c);
  }
  backward_.push_back([=] {
    for (int64_t r = 0; r < y->rows; ++r) {
      for (int64_t c = 0; c < y->cols; ++c) table->grad_at(picked[r], c) += y->grad_at(r, c);
    }
  });
  return y;
}

Matrix* Tape::CrossEntropy(Matrix* logits, std::span<const int32_t> targets) {
  Matrix* const loss = New(1, 1);
  const std::vector<int32_t> wanted(targets.begin(), targets.end());
  const auto log_sum = [=](int64_t r) {
    double sum = 0;
    for (int64_t c = 0; c < logits->cols; ++c) sum += std::exp(logits->at(r, c));
    return std::log(sum);
  };
  for (int64_t r = 0; r < logits->rows; ++r) {
    if (wanted[r] >= 0) loss->value[0] += log_sum(r) - logits->at(r, wanted[r]);
  }
  backward_.push_back([=] {
    for (int64_t r = 0; r < logits->rows; ++r) {
      if (wanted[r] < 0) continue;
      const double normaliser = log_sum(r);
      for (int64_t c = 0; c < logits->cols; ++c) {
        const double p = std::exp(logits->at(r, c) - normaliser);
        logits->grad_at(r, c) += loss->grad[0] * (p - (c == wanted[r] ? 1 : 0));
      }
    }
  });
  return loss;
}

void Tape::Backward(Matrix* root, double scale) {
  root->grad[0] = scale;
  for (auto step = backward_.rbegin(); step != backward_.rend(); ++step) (*step)();
}

}  // namespace forebay::reference
