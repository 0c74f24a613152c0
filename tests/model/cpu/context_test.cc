#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "forebay/model/cpu/loss.h"
#include "reference.h"

namespace forebay::cpu {
namespace {

int64_t NumThreadsOfThisProcess() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

struct ModelShape {
  int64_t tokens, hidden, intermediate, vocab, heads, kv_heads, head_dim;
};

// Every operator that takes scratch, once.
void RunEverything(Context& context, const ModelShape& s) {
  const int64_t width = s.heads * s.head_dim;
  const int64_t largest = std::max({s.hidden, s.intermediate, width});
  const Floats a = RandomFloats(s.tokens * largest, 1), b = RandomFloats(s.tokens * largest, 2);
  Floats c(a.size()), d(a.size()), e(a.size()), f(a.size()), rows(a.size()), more_rows(a.size());
  Floats dweight(static_cast<size_t>(largest * largest), 0.0f);
  const std::vector<Bf16> weight =
      ToBf16(RandomFloats(std::max(s.vocab, largest) * largest, 3, 0.1));
  for (const auto& [in, out] :
       {std::pair{s.hidden, s.intermediate}, {s.intermediate, s.hidden}, {s.hidden, width}}) {
    const Linear linear{.weight = weight.data(), .in = in, .out = out};
    LinearForward(context, linear, a.data(), s.tokens, c.data());
    LinearBackwardInput(context, linear, a.data(), s.tokens, c.data(), false);
    LinearBackwardWeight(context, linear, a.data(), b.data(), s.tokens, dweight.data(), nullptr);
  }
  RmsNormForward(context, a.data(), weight.data(), DType::kBF16, 1e-5, s.tokens, s.hidden, c.data(),
                 rows.data());
  RmsNormBackward(context, a.data(), weight.data(), DType::kBF16, rows.data(), b.data(),
                  s.tokens * s.heads, s.head_dim, c.data(), false, dweight.data());
  LayerNormBackward(context, a.data(), weight.data(), DType::kBF16, rows.data(), more_rows.data(),
                    b.data(), s.tokens, s.hidden, c.data(), false, dweight.data(),
                    dweight.data() + s.hidden);
  const Segment segment{0, s.tokens};
  const AttentionShape shape{s.tokens, s.heads, s.kv_heads, s.head_dim, 0, {&segment, 1}};
  Floats log_sum_exp(static_cast<size_t>(s.heads * s.tokens));
  AttentionForward(context, shape, a.data(), b.data(), b.data(), c.data(), log_sum_exp.data());
  AttentionBackward(context, shape, a.data(), b.data(), b.data(), c.data(), log_sum_exp.data(),
                    a.data(), d.data(), e.data(), f.data());
  const std::vector<int32_t> targets(static_cast<size_t>(s.tokens), 1);
  Floats dhead(static_cast<size_t>(s.vocab * s.hidden), 0.0f);
  CrossEntropyForwardBackward(context, {.weight = weight.data(), .in = s.hidden, .out = s.vocab},
                              a.data(), targets, 1.0, d.data(), dhead.data());
}

int64_t Bound(int num_threads, Precision precision, const ModelShape& s) {
  return ScratchBytes(num_threads, precision, s.tokens, s.hidden, s.intermediate, s.vocab,
                      s.head_dim, s.heads * s.head_dim);
}

constexpr ModelShape kShapes[] = {
    {700, 96, 256, 1000, 6, 2, 16}, {64, 32, 48, 70000, 4, 4, 64}, {1, 8, 8, 3, 1, 1, 8}};

TEST(ScratchBytes, IsAnUpperBoundOfWhatTheOperatorsTake) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    for (const int num_threads : {1, 3}) {
      for (const ModelShape& shape : kShapes) {
        Context context(num_threads, precision);
        RunEverything(context, shape);
        EXPECT_GT(context.scratch_bytes(), 0);
        EXPECT_LE(context.scratch_bytes(), Bound(num_threads, precision, shape));
      }
    }
  }
}

TEST(Context, TakesNoMoreScratchTheSecondTime) {
  Context context(1, Precision::kBf16);
  RunEverything(context, kShapes[0]);
  const int64_t after_first = context.scratch_bytes();
  RunEverything(context, kShapes[0]);
  EXPECT_EQ(context.scratch_bytes(), after_first);
}

TEST(Context, OneDnnStartsNoThreadsOfItsOwn) {
  const int64_t before = NumThreadsOfThisProcess();
  Context context(3, Precision::kBf16);
  RunEverything(context, kShapes[0]);
  EXPECT_EQ(NumThreadsOfThisProcess(), before + 2);
}

TEST(Context, NamesItsKernels) {
  Context fp32(1, Precision::kFp32);
  EXPECT_THAT(fp32.kernel_identity(),
              testing::MatchesRegex("onednn [0-9]+\\.[0-9]+\\.[0-9]+ [a-z0-9_]+ fp32"));
  Context bf16(1, Precision::kBf16);
  EXPECT_THAT(bf16.kernel_identity(),
              testing::EndsWith(bf16.native_bf16() ? " bf16-2" : " fp32-widened"));
  Context fp16(1, Precision::kFp16);
  EXPECT_THAT(fp16.kernel_identity(), testing::EndsWith(" fp32-rounded-to-fp16"));
}

TEST(Context, KeepsItsThreadsAndPrecision) {
  Context context(3, Precision::kFp32);
  EXPECT_EQ(context.pool().num_threads(), 3);
  EXPECT_EQ(context.precision(), Precision::kFp32);
  EXPECT_FALSE(context.native_bf16());
}

}  // namespace
}  // namespace forebay::cpu
