// The operators of a decoder on a GPU, forward and backward: those of model/cpu/ops.h. Activations,
// their gradients and weights are of one type (bf16, fp16 or fp32), row-major; gradients of weights
// are fp32, and are added to. Sums are fp32, in an order that the shape alone decides: the same run
// gives the same bits on one card.
//
// Every call enqueues its work on the context's stream and returns; addresses are the device's,
// 16-byte aligned, and borrowed until the stream is through. Buffers do not overlap unless said.
// EnvironmentError: a launch, or the library of matrix products, fails. Shapes are the caller's to
// get right (FOREBAY_CHECK).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/device/gpu_matmul.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/model/cuda/scratch.h"
#include "forebay/model/operands/linear.h"

namespace forebay::cuda {

struct ContextOptions {
  DType dtype = DType::kBF16;  // of activations and weights
  bool tf32 = false;           // fp32 products may round their inputs to TF32
  int64_t scratch_bytes = 0;   // ScratchBytes of the largest shapes that will come
};

// The operators enqueue to its stream, and share its scratch memory. Owned by one thread.
class Context {
 public:
  // `device`, a CUDA device, its `budget` and `stream` outlive it. Charges the scratch and
  // kMatmulWorkspaceBytes. OutOfMemoryError,
  // EnvironmentError.
  static absl::StatusOr<std::unique_ptr<Context>> Create(Device* device, Stream* stream,
                                                         MemoryBudget* budget,
                                                         const ContextOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  DType dtype() const { return options_.dtype; }
  bool tf32() const { return options_.tf32; }
  Stream& stream() { return *stream_; }
  GpuMatmul& matmul() { return *matmul_; }
  const DeviceAllocation& scratch() const { return scratch_; }

 private:
  Context(Stream* stream, MemoryBudget* budget, const ContextOptions& options)
      : stream_(stream), budget_(budget), options_(options) {}

  Stream* const stream_;
  MemoryBudget* const budget_;
  const ContextOptions options_;
  std::unique_ptr<GpuMatmul> matmul_;
  DeviceAllocation scratch_;
};

// ---- Linear layers

// y [tokens, out] = x [tokens, in] W^T + bias, or added to y.
absl::Status LinearForward(Context& context, const Linear& linear, const void* x, int64_t tokens,
                           void* y, bool accumulate = false);
// dx [tokens, in] (+)= dy W.
absl::Status LinearBackwardInput(Context& context, const Linear& linear, const void* dy,
                                 int64_t tokens, void* dx, bool accumulate);
// dweight (as W is stored, same row stride, fp32) += dy^T x; dbias [out] fp32 += column sums of dy
// (nullptr: none).
absl::Status LinearBackwardWeight(Context& context, const Linear& linear, const void* x,
                                  const void* dy, int64_t tokens, float* dweight, float* dbias);

// ---- Normalisation, over rows of `width` elements; weight, bias: [width]

// y = x / sqrt(mean(x^2) + eps) * weight. inverse_rms: [rows] fp32, written.
absl::Status RmsNormForward(Context& context, const void* x, const void* weight, double eps,
                            int64_t rows, int64_t width, void* y, float* inverse_rms);
// dx (+)= its gradient, dweight [width] fp32 += that of the weight.
absl::Status RmsNormBackward(Context& context, const void* x, const void* weight,
                             const float* inverse_rms, const void* dy, int64_t rows, int64_t width,
                             void* dx, bool accumulate_dx, float* dweight);
// y = (x - mean) / sqrt(var + eps) * weight + bias. mean, inverse_std: [rows] fp32, written.
absl::Status LayerNormForward(Context& context, const void* x, const void* weight, const void* bias,
                              double eps, int64_t rows, int64_t width, void* y, float* mean,
                              float* inverse_std);
absl::Status LayerNormBackward(Context& context, const void* x, const void* weight,
                               const float* mean, const float* inverse_std, const void* dy,
                               int64_t rows, int64_t width, void* dx, bool accumulate_dx,
                               float* dweight, float* dbias);

// ---- Attention

// cos, sin: [max_positions, head_dim / 2] fp32 (model/rope.h), with yarn's factor in them.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t head_dim = 0;
};
// In place on x [tokens, heads, head_dim]: rotates the pairs (i, i + head_dim/2) by the token's
// position. `inverse` applies the transpose (the backward pass).
absl::Status Rope(Context& context, const RopeTable& table, const int32_t* positions,
                  int64_t tokens, int64_t heads, void* x, bool inverse);

// Causal grouped-query attention inside segments. q: [tokens, heads, head_dim]; k, v: [tokens,
// kv_heads, head_dim].
struct AttentionShape {
  int64_t tokens = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim: even, at most 256
  int64_t window = 0;  // 0: all; else key j is visible to query i when i - window < j <= i
  // By token, [tokens] each: the first token of its segment, and the one past the last. Of a token
  // that is in none (padding) both are 0. Segments are ascending and disjoint.
  const int32_t* segment_begin = nullptr;
  const int32_t* segment_end = nullptr;
};
// o: [tokens, heads, head_dim]; log_sum_exp: [heads, tokens] fp32, written for the backward pass.
// Rows of padding are zero.
absl::Status AttentionForward(Context& context, const AttentionShape& shape, const void* q,
                              const void* k, const void* v, void* o, float* log_sum_exp);
// dq, dk, dv are overwritten.
absl::Status AttentionBackward(Context& context, const AttentionShape& shape, const void* q,
                               const void* k, const void* v, const void* o,
                               const float* log_sum_exp, const void* d_o, void* dq, void* dk,
                               void* dv);

// ---- Element by element, over `count` elements

// out = silu(gate) * up.
absl::Status SwiGluForward(Context& context, const void* gate, const void* up, int64_t count,
                           void* out);
// dgate and dup may be the same buffers as gate and up.
absl::Status SwiGluBackward(Context& context, const void* gate, const void* up, const void* dout,
                            int64_t count, void* dgate, void* dup);
// The tanh form that GPT-2 uses (transformers' gelu_new).
absl::Status GeluTanhForward(Context& context, const void* x, int64_t count, void* out);
absl::Status GeluTanhBackward(Context& context, const void* x, const void* dout, int64_t count,
                              void* dx);

// ---- Embedding

// out[i] (+)= table[tokens[i]]; table [vocab, hidden], out [num_tokens, hidden].
absl::Status EmbeddingForward(Context& context, const void* table, const int32_t* tokens,
                              int64_t num_tokens, int64_t hidden, void* out, bool accumulate);
// The tokens of a pass, grouped by what they are: `order` [num_tokens] has their places, those of
// one token behind each other and ascending, and `run_begin` [num_runs + 1] where in it each run
// begins. The caller sorts.
struct TokenRuns {
  const int32_t* order = nullptr;
  const int32_t* run_begin = nullptr;
  int64_t num_runs = 0;
};
// dtable[tokens[i]] += dout[i] (fp32), in the order of i for every row of the table.
absl::Status EmbeddingBackward(Context& context, const int32_t* tokens, const TokenRuns& runs,
                               int64_t hidden, const void* dout, float* dtable);
// The same for the rows [first_row, first_row + num_rows) alone. `dtable`: of the first of them.
absl::Status EmbeddingBackwardOfRows(Context& context, const int32_t* tokens, const TokenRuns& runs,
                                     int64_t hidden, const void* dout, int64_t first_row,
                                     int64_t num_rows, float* dtable);

// ---- Loss

// Cross-entropy of x [tokens, hidden] against `targets` (-1: not trained) through the output
// projection `head` (out: vocabulary), with the logits made for some tokens at a time and never
// kept whole. loss_sum: one double, overwritten with the sum over trained tokens of -log p(target).
absl::Status CrossEntropyForward(Context& context, const Linear& head, const void* x,
                                 const int32_t* targets, int64_t tokens, double* loss_sum);
// Also the gradients of loss_sum * scale: dx [tokens, hidden] overwritten, dweight (as `head` is
// stored, fp32) added to.
absl::Status CrossEntropyForwardBackward(Context& context, const Linear& head, const void* x,
                                         const int32_t* targets, int64_t tokens, double scale,
                                         double* loss_sum, void* dx, float* dweight);
// The same without dweight. `log_sum_exp`: [tokens], of trained tokens written, for
// ProjectionGradient.
absl::Status CrossEntropyForwardBackwardInput(Context& context, const Linear& head, const void* x,
                                              const int32_t* targets, int64_t tokens, double scale,
                                              double* loss_sum, void* dx, float* log_sum_exp);
// Then, of a vocabulary that is cut (VocabularyCut), for the part of dweight that begins with
// `first_row`: it is added to, with the bits of CrossEntropyForwardBackward of as many tokens.
// `dweight`: of that row.
absl::Status ProjectionGradient(Context& context, const Linear& head, const void* x,
                                const int32_t* targets, int64_t tokens, double scale,
                                const float* log_sum_exp, int64_t first_row, float* dweight);
// logits [rows, vocab] fp32, for generation.
absl::Status Logits(Context& context, const Linear& head, const void* x, int64_t rows,
                    float* logits);

}  // namespace forebay::cuda
