#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "forebay/base/counter_rng.h"

namespace forebay::cpu {

Floats RandomFloats(int64_t count, uint64_t seed, double scale) {
  const CounterRng rng(seed);
  Floats values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.Normal(i) * scale);
  return values;
}

std::vector<Bf16> ToBf16(std::span<const float> values) {
  std::vector<Bf16> out;
  for (const float value : values) out.push_back(FloatToBf16(value));
  return out;
}

Floats Widened(std::span<const Bf16> values) {
  Floats out;
  for (const Bf16 value : values) out.push_back(Bf16ToFloat(value));
  return out;
}

Doubles ToDouble(std::span<const float> values) {
  return {values.begin(), values.end()};
}

double DotProduct(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double RelativeError(std::span<const float> actual, std::span<const double> expected,
                     double least_scale) {
  if (actual.size() != expected.size()) return INFINITY;
  double largest = least_scale;
  double error = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return INFINITY;
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(static_cast<double>(actual[i]) - expected[i]));
  }
  return error / largest;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

bool SameBitsForAllThreadCounts(const std::function<Floats(Context&)>& run) {
  Context one(1, Precision::kBf16);
  const Floats expected = run(one);
  for (const int num_threads : {2, 3}) {
    Context context(num_threads, Precision::kBf16);
    if (!SameBits(run(context), expected)) return false;
  }
  return true;
}

Doubles NumericalGradient(const std::function<double(const Doubles&)>& f, Doubles x) {
  constexpr double kStep = 1e-5;
  Doubles gradient;
  for (double& value : x) {
    const double saved = value;
    value = saved + kStep;
    const double above = f(x);
    value = saved - kStep;
    const double below = f(x);
    value = saved;
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

Doubles ReferenceProduct(const Doubles& a, const Doubles& b, int64_t m, int64_t n, int64_t k,
                         bool transpose_a, bool transpose_b) {
  Doubles c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      const double factor = a[static_cast<size_t>(transpose_a ? l * m + i : i * k + l)];
      for (int64_t j = 0; j < n; ++j) {
        c[static_cast<size_t>(i * n + j)] +=
            factor * b[static_cast<size_t>(transpose_b ? j * k + l : l * n + j)];
      }
    }
  }
  return c;
}

namespace {

// Calls visit(query row, first key row, probabilities, log sum exp) for every head and query of a
// segment.
template <typename Visit>
void ForEachQuery(const AttentionShape& shape, const Doubles& q, const Doubles& k,
                  const Visit& visit) {
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const int64_t group = shape.heads / shape.kv_heads;
  for (const Segment& segment : shape.segments) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t i = 0; i < segment.length; ++i) {
        const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, i - shape.window + 1);
        const double* query =
            &q[static_cast<size_t>(((segment.begin + i) * shape.heads + head) * shape.head_dim)];
        Doubles p;
        for (int64_t j = first; j <= i; ++j) {
          const double* key = &k[static_cast<size_t>(
              ((segment.begin + j) * shape.kv_heads + head / group) * shape.head_dim)];
          double score = 0;
          for (int64_t d = 0; d < shape.head_dim; ++d) score += query[d] * key[d];
          p.push_back(score * scale);
        }
        const double max = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& value : p) sum += value = std::exp(value - max);
        for (double& value : p) value /= sum;
        visit(segment.begin + i, segment.begin + first, head, p, max + std::log(sum));
      }
    }
  }
}

}  // namespace

ReferenceAttention AttendInDouble(const AttentionShape& shape, const Doubles& q, const Doubles& k,
                                  const Doubles& v) {
  ReferenceAttention result{Doubles(q.size(), 0.0),
                            Doubles(static_cast<size_t>(shape.heads * shape.tokens), 0.0)};
  const int64_t group = shape.heads / shape.kv_heads;
  ForEachQuery(
      shape, q, k, [&](int64_t query, int64_t first, int64_t head, const Doubles& p, double lse) {
        double* row = &result.o[static_cast<size_t>((query * shape.heads + head) * shape.head_dim)];
        for (size_t j = 0; j < p.size(); ++j) {
          const int64_t key = first + static_cast<int64_t>(j);
          const double* value =
              &v[static_cast<size_t>((key * shape.kv_heads + head / group) * shape.head_dim)];
          for (int64_t d = 0; d < shape.head_dim; ++d) row[d] += p[j] * value[d];
        }
        result.log_sum_exp[static_cast<size_t>(head * shape.tokens + query)] = lse;
      });
  return result;
}

ReferenceAttentionGradients AttendGradientsInDouble(const AttentionShape& shape, const Doubles& q,
                                                    const Doubles& k, const Doubles& v,
                                                    const Doubles& d_o) {
  ReferenceAttentionGradients result{Doubles(q.size(), 0.0), Doubles(k.size(), 0.0),
                                     Doubles(v.size(), 0.0)};
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const int64_t group = shape.heads / shape.kv_heads;
  ForEachQuery(
      shape, q, k, [&](int64_t query, int64_t first, int64_t head, const Doubles& p, double) {
        const size_t query_row = static_cast<size_t>((query * shape.heads + head) * shape.head_dim);
        const auto key_row = [&](size_t j) {
          const int64_t key = first + static_cast<int64_t>(j);
          return static_cast<size_t>((key * shape.kv_heads + head / group) * shape.head_dim);
        };
        const size_t width = static_cast<size_t>(shape.head_dim);
        Doubles dp(p.size(), 0.0);
        double mean = 0;
        for (size_t j = 0; j < p.size(); ++j) {
          for (size_t d = 0; d < width; ++d) dp[j] += d_o[query_row + d] * v[key_row(j) + d];
          mean += p[j] * dp[j];
        }
        for (size_t j = 0; j < p.size(); ++j) {
          const double ds = p[j] * (dp[j] - mean) * scale;
          for (size_t d = 0; d < width; ++d) {
            result.dv[key_row(j) + d] += p[j] * d_o[query_row + d];
            result.dk[key_row(j) + d] += ds * q[query_row + d];
            result.dq[query_row + d] += ds * k[key_row(j) + d];
          }
        }
      });
  return result;
}

}  // namespace forebay::cpu
