// The operators of a decoder on the CPU, forward and backward. Activations are fp32, row-major;
// weights are bf16, fp16 or fp32. Matrix products go to oneDNN in blocks whose size depends on the
// shape alone, each block on one thread: so every result is the same bits for every number of
// threads.
//
// Shapes: tokens = rows of the activation matrix. All pointers are borrowed for the call. Buffers
// do not overlap unless said. Nothing here fails: shapes are the caller's to get right
// (FOREBAY_CHECK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "forebay/base/dtype.h"
#include "forebay/base/process/parallel.h"
#include "forebay/data/micro_batch.h"
#include "forebay/model/operands/linear.h"
#include "forebay/model/operands/vocabulary_cut.h"

namespace forebay::cpu {

enum class Precision : uint8_t {
  kFp32,
  kBf16,  // GEMM inputs are bf16 (native AVX-512/AMX products, fp32 sums) where the CPU has them;
          // elsewhere bf16 weights are widened and multiplied in fp32
  kFp16,  // of GEMMs inputs and results are rounded to fp16, what is beyond its range becomes
          // infinite; products and sums are fp32. Gradients of weights are sums over micro-batches
          // and rounded when they are whole (optimizer/held_gradients.h)
};
// What weights are stored in for it.
constexpr DType WeightDType(Precision precision) {
  return precision == Precision::kFp32   ? DType::kF32
         : precision == Precision::kFp16 ? DType::kF16
                                         : DType::kBF16;
}

// Threads, precision and per-thread scratch of all operators. Owned by one thread at a time.
class Context {
 public:
  // `num_threads` >= 1.
  Context(int num_threads, Precision precision);
  ~Context();
  ThreadPool& pool();
  Precision precision() const;
  bool native_bf16() const;             // bf16 products in hardware
  std::string kernel_identity() const;  // "onednn 2.6.3 avx2 fp32-widened": recorded in runs
  // What the grow-only scratch holds by now; the planner charges its bound, ScratchBytes(...).
  int64_t scratch_bytes() const;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// c [m, n] (+)= op(a) * op(b), all fp32. lda, ldb, ldc: row strides as stored. op(a) is [m, k],
// op(b) is [k, n].
struct GemmShape {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  int64_t lda, ldb, ldc;
};
void Gemm(Context& context, const GemmShape& shape, const float* a, const float* b, float* c);

using forebay::Linear;
// x: [tokens, in] (row stride in), y: [tokens, out], overwritten, or added to.
void LinearForward(Context& context, const Linear& linear, const float* x, int64_t tokens, float* y,
                   bool accumulate = false);
// Several layers of the same x, which is converted once for all.
struct LinearOutput {
  Linear linear;
  float* y;
};
void LinearForward(Context& context, std::span<const LinearOutput> outputs, const float* x,
                   int64_t tokens, bool accumulate = false);
// dx: [tokens, in] (+)= dy W.
void LinearBackwardInput(Context& context, const Linear& linear, const float* dy, int64_t tokens,
                         float* dx, bool accumulate);
// dweight (as W is stored, same row stride, fp32) += dy^T x; dbias [out] += column sums of dy
// (nullptr: none).
void LinearBackwardWeight(Context& context, const Linear& linear, const float* x, const float* dy,
                          int64_t tokens, float* dweight, float* dbias);
// Both of them, of several layers of the same x; dx is overwritten with the sum over the layers.
struct LinearGradient {
  Linear linear;
  const float* dy;
  float* dweight;
  float* dbias;
};
void LinearBackward(Context& context, std::span<const LinearGradient> gradients, const float* x,
                    int64_t tokens, float* dx);

// y = x / sqrt(mean(x^2) + eps) * weight over rows of `width` elements. `inverse_rms`: [rows],
// written.
void RmsNormForward(Context& context, const float* x, const void* weight, DType dtype, double eps,
                    int64_t rows, int64_t width, float* y, float* inverse_rms);
// dx (+)= ..., dweight [width] += ... Sums over rows in blocks of fixed size, added in order.
void RmsNormBackward(Context& context, const float* x, const void* weight, DType dtype,
                     const float* inverse_rms, const float* dy, int64_t rows, int64_t width,
                     float* dx, bool accumulate_dx, float* dweight);
// y = (x - mean) / sqrt(var + eps) * weight + bias. mean, inverse_std: [rows], written.
void LayerNormForward(Context& context, const float* x, const void* weight, const void* bias,
                      DType dtype, double eps, int64_t rows, int64_t width, float* y, float* mean,
                      float* inverse_std);
void LayerNormBackward(Context& context, const float* x, const void* weight, DType dtype,
                       const float* mean, const float* inverse_std, const float* dy, int64_t rows,
                       int64_t width, float* dx, bool accumulate_dx, float* dweight, float* dbias);

// cos, sin: [max_positions, head_dim / 2] fp32 tables (model/rope.h), already multiplied by yarn's
// attention factor.
struct RopeTable {
  std::span<const float> cos, sin;
  int64_t head_dim = 0;
};
// In place on x [tokens, heads, head_dim]: rotates the pairs (i, i + head_dim/2) by the token's
// position. `inverse` applies the transpose (the backward pass).
void Rope(Context& context, const RopeTable& table, std::span<const int32_t> positions,
          int64_t heads, float* x, bool inverse);

// Causal grouped-query attention inside segments. q: [tokens, heads, head_dim]; k, v: [tokens,
// kv_heads, head_dim].
struct AttentionShape {
  int64_t tokens = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // 0: all; else key j is visible to query i when i - window < j <= i
  std::span<const Segment> segments;
};
// o: [tokens, heads, head_dim]; log_sum_exp: [heads, tokens], written for the backward pass. Rows
// outside every segment (padding) are zero.
void AttentionForward(Context& context, const AttentionShape& shape, const float* q, const float* k,
                      const float* v, float* o, float* log_sum_exp);
// dq, dk, dv are overwritten.
void AttentionBackward(Context& context, const AttentionShape& shape, const float* q,
                       const float* k, const float* v, const float* o, const float* log_sum_exp,
                       const float* d_o, float* dq, float* dk, float* dv);
// One step of generation: `num_queries` new tokens of one sequence whose first has position
// `first_position`; keys and values [first_position + num_queries, kv_heads, head_dim] are cached.
void AttentionCached(Context& context, int64_t num_queries, int64_t first_position, int64_t heads,
                     int64_t kv_heads, int64_t head_dim, int64_t window, const float* q,
                     const float* k_cache, const float* v_cache, float* o);

// out = silu(gate) * up, elementwise over `count`.
void SwiGluForward(Context& context, const float* gate, const float* up, int64_t count, float* out);
// dgate and dup may be the same buffers as gate and up.
void SwiGluBackward(Context& context, const float* gate, const float* up, const float* dout,
                    int64_t count, float* dgate, float* dup);
// The tanh form that GPT-2 uses (transformers' gelu_new).
void GeluTanhForward(Context& context, const float* x, int64_t count, float* out);
void GeluTanhBackward(Context& context, const float* x, const float* dout, int64_t count,
                      float* dx);

// y += x.
void Add(Context& context, const float* x, int64_t count, float* y);

// out[i] = table[tokens[i]] ; table [vocab, hidden] in `dtype`.
void EmbeddingForward(Context& context, const void* table, DType dtype,
                      std::span<const int32_t> tokens, int64_t hidden, float* out, bool accumulate);
// The same for the tokens in [first_row, first_row + num_rows) alone, of which `rows` has the rows
// of the table.
void EmbeddingForwardOfRows(Context& context, const void* rows, DType dtype,
                            std::span<const int32_t> tokens, int64_t hidden, int64_t first_row,
                            int64_t num_rows, float* out);
// dtable[tokens[i]] += dout[i], in the order of i for every row of the table.
void EmbeddingBackward(Context& context, std::span<const int32_t> tokens, int64_t hidden,
                       const float* dout, float* dtable);
// The same for the rows [first_row, first_row + num_rows) alone. `dtable`: of the first of them.
void EmbeddingBackwardOfRows(Context& context, std::span<const int32_t> tokens, int64_t hidden,
                             const float* dout, int64_t first_row, int64_t num_rows, float* dtable);

// Cross-entropy of x [tokens, hidden] against `targets` (-1: not trained) through the output
// projection `head`
// ([vocab, hidden]), with the logits made chunk by chunk (tokens and vocabulary) and never kept
// whole.
struct LossResult {
  double loss_sum = 0;  // sum over trained tokens of -log p(target), fp32 terms, summed in order
  int64_t num_trained = 0;
};
LossResult CrossEntropyForward(Context& context, const Linear& head, const float* x,
                               std::span<const int32_t> targets);
// Also the gradients of loss_sum * scale: dx [tokens, hidden] overwritten, dweight [vocab, hidden]
// fp32 +=.
LossResult CrossEntropyForwardBackward(Context& context, const Linear& head, const float* x,
                                       std::span<const int32_t> targets, double scale, float* dx,
                                       float* dweight);
// The same without dweight. `log_sum_exp`: [tokens], of trained rows written, for
// ProjectionGradient.
LossResult CrossEntropyForwardBackwardInput(Context& context, const Linear& head, const float* x,
                                            std::span<const int32_t> targets, double scale,
                                            float* dx, float* log_sum_exp);
// A part of a vocabulary that is cut (VocabularyCut): `rows` has the weights of the projection from
// `first_row` on. Those of `head` are not read.
struct ProjectionPart {
  Linear head;
  const void* rows = nullptr;
  int64_t first_row = 0;
};
// Then the same part of dweight: it is added to, with the bits of CrossEntropyForwardBackward.
// `dweight`: of `first_row`.
void ProjectionGradient(Context& context, const ProjectionPart& part, const float* x,
                        std::span<const int32_t> targets, double scale, const float* log_sum_exp,
                        float* dweight);

// The logits of a token, as far as parts have shown them.
struct LogitSums {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;  // of exp(logit - max)
  float target_logit = 0;
};
// CrossEntropyForwardBackwardInput without memory for all of the weights, with the same bits. Each
// pass is over the parts in their order. First, `sums` [tokens]:
void LogitSumsOfPart(Context& context, const ProjectionPart& part, const float* x,
                     std::span<const int32_t> targets, LogitSums* sums);
// ... then once, without weights, `log_sum_exp` (nullptr: none):
LossResult CrossEntropyOfSums(const LogitSums* sums, std::span<const int32_t> targets,
                              float* log_sum_exp);
// ... and in a second pass dx, which the first part overwrites, and the others add to.
void InputGradientOfPart(Context& context, const ProjectionPart& part, const float* x,
                         std::span<const int32_t> targets, double scale, const float* log_sum_exp,
                         float* dx);
// logits [rows, vocab] fp32, for generation.
void Logits(Context& context, const Linear& head, const float* x, int64_t rows, float* logits);

// Upper bound of the scratch that a Context grows to, with an allowance for oneDNN's own, for the
// planner. attention_width: heads * head_dim, which may be larger than `hidden`.
int64_t ScratchBytes(int num_threads, Precision precision, int64_t max_tokens, int64_t hidden,
                     int64_t intermediate, int64_t vocab, int64_t head_dim,
                     int64_t attention_width);

}  // namespace forebay::cpu
