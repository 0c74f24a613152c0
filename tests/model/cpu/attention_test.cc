#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "reference.h"

namespace forebay::cpu {
namespace {

struct Case {
  std::string name;
  int64_t tokens, heads, kv_heads, head_dim, window;
  std::vector<Segment> segments;

  AttentionShape shape() const { return {tokens, heads, kv_heads, head_dim, window, segments}; }
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

struct Tensors {
  Floats q, k, v, d_o;
};
Tensors RandomTensors(const AttentionShape& s) {
  return {RandomFloats(s.tokens * s.heads * s.head_dim, 1),
          RandomFloats(s.tokens * s.kv_heads * s.head_dim, 2),
          RandomFloats(s.tokens * s.kv_heads * s.head_dim, 3),
          RandomFloats(s.tokens * s.heads * s.head_dim, 4)};
}

struct Outputs {
  Floats o, log_sum_exp, dq, dk, dv;
};
// All outputs start as NaN: what the operators do not write shows.
Outputs RunBoth(Context& context, const AttentionShape& s, const Tensors& t) {
  Outputs out{Floats(t.q.size(), NAN), Floats(static_cast<size_t>(s.heads * s.tokens), NAN),
              Floats(t.q.size(), NAN), Floats(t.k.size(), NAN), Floats(t.v.size(), NAN)};
  AttentionForward(context, s, t.q.data(), t.k.data(), t.v.data(), out.o.data(),
                   out.log_sum_exp.data());
  AttentionBackward(context, s, t.q.data(), t.k.data(), t.v.data(), out.o.data(),
                    out.log_sum_exp.data(), t.d_o.data(), out.dq.data(), out.dk.data(),
                    out.dv.data());
  return out;
}

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, EqualsFloat64) {
  const AttentionShape shape = GetParam().shape();
  const Tensors t = RandomTensors(shape);
  Context context(2, Precision::kFp32);
  const Outputs out = RunBoth(context, shape, t);
  const Doubles q = ToDouble(t.q), k = ToDouble(t.k), v = ToDouble(t.v);
  const ReferenceAttention expected = AttendInDouble(shape, q, k, v);
  EXPECT_LT(RelativeError(out.o, expected.o), 3e-6);
  EXPECT_LT(RelativeError(out.log_sum_exp, expected.log_sum_exp), 1e-6);
}

TEST_P(Attention, GradientsEqualFloat64) {
  const AttentionShape shape = GetParam().shape();
  const Tensors t = RandomTensors(shape);
  Context context(2, Precision::kFp32);
  const Outputs out = RunBoth(context, shape, t);
  const ReferenceAttentionGradients expected =
      AttendGradientsInDouble(shape, ToDouble(t.q), ToDouble(t.k), ToDouble(t.v), ToDouble(t.d_o));
  EXPECT_LT(RelativeError(out.dq, expected.dq, 1.0), 5e-6);
  EXPECT_LT(RelativeError(out.dk, expected.dk, 1.0), 5e-6);
  EXPECT_LT(RelativeError(out.dv, expected.dv, 1.0), 5e-6);
}

TEST_P(Attention, IsTheSameBitsForAllThreadCounts) {
  const AttentionShape shape = GetParam().shape();
  const Tensors t = RandomTensors(shape);
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    const Outputs out = RunBoth(context, shape, t);
    Floats all = out.o;
    for (const Floats* part : {&out.log_sum_exp, &out.dq, &out.dk, &out.dv}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Values(
        Case{"OneToken", 1, 2, 1, 8, 0, {{0, 1}}},
        Case{"OneShortSegment", 7, 3, 3, 16, 0, {{0, 7}}},
        Case{"GroupedQueriesAndManySegments", 256, 9, 3, 64, 0, {{0, 100}, {100, 60}, {160, 96}}},
        Case{"PaddingBetweenAndAfter", 90, 4, 2, 80, 0, {{3, 20}, {30, 41}}},
        Case{"MoreThanOneKeyBlock", 1100, 2, 1, 64, 0, {{0, 1100}}},
        Case{"ManyHeadsAndMoreThanOneKeyBlock", 600, 8, 8, 16, 0, {{0, 600}}},
        Case{"WindowWithinABlock", 200, 2, 2, 128, 17, {{0, 150}, {150, 50}}},
        Case{"WindowAcrossKeyBlocks", 1000, 2, 1, 32, 300, {{0, 1000}}},
        Case{"WindowOfOneToken", 80, 2, 1, 8, 1, {{0, 80}}},
        Case{"OddSizes", 131, 5, 5, 13, 0, {{0, 67}, {67, 64}}},
        Case{"NoSegment", 5, 2, 1, 8, 0, {}}),
    [](const auto& test) { return test.param.name; });

TEST(AttentionReference, GradientsEqualFiniteDifferences) {
  const std::vector<Segment> segments = {{0, 5}, {6, 3}};
  const AttentionShape shape{10, 4, 2, 3, 4, segments};
  const Tensors t = RandomTensors(shape);
  const Doubles q = ToDouble(t.q), k = ToDouble(t.k), v = ToDouble(t.v), d_o = ToDouble(t.d_o);
  const ReferenceAttentionGradients gradients = AttendGradientsInDouble(shape, q, k, v, d_o);
  const auto loss = [&](const Doubles& q_in, const Doubles& k_in, const Doubles& v_in) {
    return DotProduct(AttendInDouble(shape, q_in, k_in, v_in).o, d_o);
  };
  const Doubles dq = NumericalGradient([&](const Doubles& x) { return loss(x, k, v); }, q);
  const Doubles dk = NumericalGradient([&](const Doubles& x) { return loss(q, x, v); }, k);
  const Doubles dv = NumericalGradient([&](const Doubles& x) { return loss(q, k, x); }, v);
  for (size_t i = 0; i < dq.size(); ++i) EXPECT_NEAR(gradients.dq[i], dq[i], 1e-8);
  for (size_t i = 0; i < dk.size(); ++i) EXPECT_NEAR(gradients.dk[i], dk[i], 1e-8);
  for (size_t i = 0; i < dv.size(); ++i) EXPECT_NEAR(gradients.dv[i], dv[i], 1e-8);
}

TEST(AttentionForward, RowsOutsideEverySegmentAreZero) {
  const std::vector<Segment> segments = {{2, 3}};
  const AttentionShape shape{7, 2, 1, 4, 0, segments};
  Context context(1, Precision::kFp32);
  const Outputs out = RunBoth(context, shape, RandomTensors(shape));
  for (const int64_t token : {0, 1, 5, 6}) {
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(out.o[static_cast<size_t>(token * 8 + i)], 0.0f);
      EXPECT_EQ(out.dq[static_cast<size_t>(token * 8 + i)], 0.0f);
    }
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out.dk[static_cast<size_t>(token * 4 + i)], 0.0f);
  }
}

TEST(AttentionForward, ASegmentDoesNotDependOnItsNeighbours) {
  const std::vector<Segment> both = {{0, 70}, {70, 90}};
  const AttentionShape together{160, 3, 1, 16, 0, both};
  Tensors t = RandomTensors(together);
  Context context(2, Precision::kFp32);
  const Outputs before = RunBoth(context, together, t);
  for (size_t i = 0; i < 70 * 3 * 16; ++i) t.q[i] += 1;
  for (size_t i = 0; i < 70 * 16; ++i) t.k[i] = t.v[i] = 5;
  const Outputs after = RunBoth(context, together, t);
  EXPECT_TRUE(
      SameBits(std::span(before.o).subspan(70 * 3 * 16), std::span(after.o).subspan(70 * 3 * 16)));
}

TEST(AttentionForward, NaNInputsAreNotHidden) {
  const std::vector<Segment> segments = {{0, 20}};
  const AttentionShape shape{20, 1, 1, 8, 0, segments};
  Tensors t = RandomTensors(shape);
  t.q[3 * 8] = NAN;
  Context context(1, Precision::kFp32);
  const Outputs out = RunBoth(context, shape, t);
  EXPECT_TRUE(std::isnan(out.o[3 * 8]));
  EXPECT_TRUE(std::isnan(out.dq[3 * 8]));
}

// Rows [first, first + count) of the same sequence, with the keys before them cached.
Floats RunCached(Context& context, const AttentionShape& s, const Tensors& t, int64_t first,
                 int64_t count) {
  const int64_t width = s.heads * s.head_dim;
  Floats o(static_cast<size_t>(count * width), NAN);
  AttentionCached(context, count, first, s.heads, s.kv_heads, s.head_dim, s.window,
                  t.q.data() + first * width, t.k.data(), t.v.data(), o.data());
  return o;
}

class AttentionCachedTest : public testing::TestWithParam<int64_t> {};

TEST_P(AttentionCachedTest, EqualsTheWholeSequenceInFloat64) {
  const int64_t window = GetParam();
  const std::vector<Segment> segments = {{0, 700}};
  const AttentionShape shape{700, 6, 2, 64, window, segments};
  const Tensors t = RandomTensors(shape);
  Context context(2, Precision::kFp32);
  const ReferenceAttention expected =
      AttendInDouble(shape, ToDouble(t.q), ToDouble(t.k), ToDouble(t.v));
  const std::vector<std::pair<int64_t, int64_t>> steps = {{0, 1},   {0, 100}, {100, 1}, {640, 3},
                                                          {101, 4}, {105, 5}, {699, 1}};
  for (const auto& [first, count] : steps) {
    const Floats o = RunCached(context, shape, t, first, count);
    const auto rows = std::span(expected.o).subspan(static_cast<size_t>(first * 6 * 64), o.size());
    EXPECT_LT(RelativeError(o, rows), 3e-6) << first << " " << count;
  }
}

TEST_P(AttentionCachedTest, IsTheSameBitsForAllThreadCounts) {
  const std::vector<Segment> segments = {{0, 300}};
  const AttentionShape shape{300, 6, 2, 64, GetParam(), segments};
  const Tensors t = RandomTensors(shape);
  EXPECT_TRUE(SameBitsForAllThreadCounts(
      [&](Context& context) { return RunCached(context, shape, t, 200, 100); }));
  EXPECT_TRUE(SameBitsForAllThreadCounts(
      [&](Context& context) { return RunCached(context, shape, t, 299, 1); }));
}

INSTANTIATE_TEST_SUITE_P(Windows, AttentionCachedTest, testing::Values(0, 50, 600));

}  // namespace
}  // namespace forebay::cpu
