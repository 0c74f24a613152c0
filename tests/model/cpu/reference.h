// float64 references of the operators, and ways to compare with them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/model/cpu/ops.h"

namespace forebay::cpu {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

// Normal numbers times `scale`; the same for the same seed.
Floats RandomFloats(int64_t count, uint64_t seed, double scale = 1.0);
std::vector<Bf16> ToBf16(std::span<const float> values);
Floats Widened(std::span<const Bf16> values);
Doubles ToDouble(std::span<const float> values);
double DotProduct(std::span<const double> a, std::span<const double> b);

// The largest |actual - expected|, divided by the largest |expected| or by `least_scale` where that
// is more (for differences of large terms that cancel).
double RelativeError(std::span<const float> actual, std::span<const double> expected,
                     double least_scale = 1e-30);
// Equal bit for bit, NaN included.
bool SameBits(std::span<const float> a, std::span<const float> b);
// Whether `run`, given a context of 1, 2 and 3 threads, returns the same bits.
bool SameBitsForAllThreadCounts(const std::function<Floats(Context&)>& run);

// d f / d x by central differences.
Doubles NumericalGradient(const std::function<double(const Doubles&)>& f, Doubles x);

// c [m, n] = op(a) op(b), dense.
Doubles ReferenceProduct(const Doubles& a, const Doubles& b, int64_t m, int64_t n, int64_t k,
                         bool transpose_a, bool transpose_b);

struct ReferenceAttention {
  Doubles o, log_sum_exp;
};
ReferenceAttention AttendInDouble(const AttentionShape& shape, const Doubles& q, const Doubles& k,
                                  const Doubles& v);
struct ReferenceAttentionGradients {
  Doubles dq, dk, dv;
};
ReferenceAttentionGradients AttendGradientsInDouble(const AttentionShape& shape, const Doubles& q,
                                                    const Doubles& k, const Doubles& v,
                                                    const Doubles& d_o);

}  // namespace forebay::cpu
