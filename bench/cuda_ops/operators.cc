#include "forebay/bench/cuda_ops/operators.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/update_cuda.h"

namespace forebay {
namespace {

constexpr DType kType = DType::kBF16;
constexpr double kSize = 2;  // bytes of an element

class OperatorList {
 public:
  OperatorList(BenchGpu& gpu, const BenchShape& shape) : gpu_(gpu), shape_(shape) {}

  absl::Status AddLinear(const std::string& name, int64_t in, int64_t out);
  absl::Status AddNorms();
  absl::Status AddRope();
  absl::Status AddAttention();
  absl::Status AddActivations();
  absl::Status AddEmbedding();
  absl::Status AddLoss();
  absl::Status AddUpdate();
  std::vector<BenchOperator> Take() { return std::move(operators_); }

 private:
  void Add(std::string name, double flops, double bytes, std::function<absl::Status()> enqueue) {
    operators_.push_back({std::move(name), flops, bytes, std::move(enqueue)});
  }
  absl::StatusOr<void*> Elements(int64_t count) { return gpu_.Random(count, kType); }
  absl::StatusOr<float*> Floats(int64_t count) {
    FOREBAY_ASSIGN_OR_RETURN(void* const address, gpu_.Random(count, DType::kF32));
    return static_cast<float*>(address);
  }
  std::vector<int32_t> RandomTokens() const {
    const CounterRng rng(3);
    std::vector<int32_t> tokens(static_cast<size_t>(shape_.tokens));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(rng.Below(i, static_cast<uint64_t>(shape_.vocab)));
    }
    return tokens;
  }

  BenchGpu& gpu_;
  const BenchShape& shape_;
  std::vector<BenchOperator> operators_;
};

absl::Status OperatorList::AddLinear(const std::string& name, int64_t in, int64_t out) {
  const int64_t tokens = shape_.tokens;
  FOREBAY_ASSIGN_OR_RETURN(void* const weight, Elements(in * out));
  FOREBAY_ASSIGN_OR_RETURN(void* const x, Elements(tokens * in));
  FOREBAY_ASSIGN_OR_RETURN(void* const y, Elements(tokens * out));
  FOREBAY_ASSIGN_OR_RETURN(float* const dweight, Floats(in * out));
  const Linear linear = {.dtype = kType, .weight = weight, .in = in, .out = out};
  cuda::Context& context = gpu_.context();
  const auto weights = static_cast<double>(in * out);
  const double flops = 2 * static_cast<double>(tokens) * weights;
  const double activations = kSize * static_cast<double>(tokens * (in + out));
  Add(name + " forward", flops, activations + kSize * weights,
      [=, &context] { return cuda::LinearForward(context, linear, x, tokens, y); });
  Add(name + " backward of the input", flops, activations + kSize * weights,
      [=, &context] { return cuda::LinearBackwardInput(context, linear, y, tokens, x, false); });
  Add(name + " backward of the weight", flops, activations + 8 * weights, [=, &context] {
    return cuda::LinearBackwardWeight(context, linear, x, y, tokens, dweight, nullptr);
  });
  return absl::OkStatus();
}

absl::Status OperatorList::AddNorms() {
  const int64_t rows = shape_.tokens, width = shape_.hidden;
  FOREBAY_ASSIGN_OR_RETURN(void* const x, Elements(rows * width));
  FOREBAY_ASSIGN_OR_RETURN(void* const y, Elements(rows * width));
  FOREBAY_ASSIGN_OR_RETURN(void* const dx, Elements(rows * width));
  FOREBAY_ASSIGN_OR_RETURN(void* const weight, Elements(width));
  FOREBAY_ASSIGN_OR_RETURN(void* const bias, Elements(width));
  FOREBAY_ASSIGN_OR_RETURN(float* const first, Floats(rows));
  FOREBAY_ASSIGN_OR_RETURN(float* const second, Floats(rows));
  FOREBAY_ASSIGN_OR_RETURN(float* const dweight, Floats(width));
  FOREBAY_ASSIGN_OR_RETURN(float* const dbias, Floats(width));
  cuda::Context& context = gpu_.context();
  const double once = kSize * static_cast<double>(rows * width);
  Add("rms_norm forward", 0, 2 * once, [=, &context] {
    return cuda::RmsNormForward(context, x, weight, 1e-5, rows, width, y, first);
  });
  Add("rms_norm backward", 0, 3 * once, [=, &context] {
    return cuda::RmsNormBackward(context, x, weight, first, y, rows, width, dx, false, dweight);
  });
  Add("layer_norm forward", 0, 2 * once, [=, &context] {
    return cuda::LayerNormForward(context, x, weight, bias, 1e-5, rows, width, y, first, second);
  });
  Add("layer_norm backward", 0, 3 * once, [=, &context] {
    return cuda::LayerNormBackward(context, x, weight, first, second, y, rows, width, dx, false,
                                   dweight, dbias);
  });
  return absl::OkStatus();
}

absl::Status OperatorList::AddRope() {
  const int64_t tokens = shape_.tokens, heads = shape_.heads;
  cuda::RopeTable table = {.head_dim = shape_.head_dim};
  FOREBAY_ASSIGN_OR_RETURN(table.cos, Floats(shape_.seq * shape_.head_dim / 2));
  FOREBAY_ASSIGN_OR_RETURN(table.sin, Floats(shape_.seq * shape_.head_dim / 2));
  FOREBAY_ASSIGN_OR_RETURN(void* const x, Elements(tokens * heads * shape_.head_dim));
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % shape_.seq);
  }
  FOREBAY_ASSIGN_OR_RETURN(const int32_t* const of_token, gpu_.Indices(positions));
  cuda::Context& context = gpu_.context();
  const double bytes = 2 * kSize * static_cast<double>(tokens * heads * shape_.head_dim);
  for (const bool inverse : {false, true}) {
    Add(inverse ? "rope backward" : "rope forward", 0, bytes,
        [=, &context] { return cuda::Rope(context, table, of_token, tokens, heads, x, inverse); });
  }
  return absl::OkStatus();
}

absl::Status OperatorList::AddAttention() {
  const int64_t of_queries = shape_.tokens * shape_.heads * shape_.head_dim;
  const int64_t of_keys = shape_.tokens * shape_.kv_heads * shape_.head_dim;
  cuda::AttentionShape attention = {.tokens = shape_.tokens,
                                    .heads = shape_.heads,
                                    .kv_heads = shape_.kv_heads,
                                    .head_dim = shape_.head_dim};
  std::vector<int32_t> begin(static_cast<size_t>(shape_.tokens)), end(begin.size());
  for (int64_t i = 0; i < shape_.tokens; ++i) {
    begin[static_cast<size_t>(i)] = static_cast<int32_t>(i / shape_.seq * shape_.seq);
    end[static_cast<size_t>(i)] = static_cast<int32_t>((i / shape_.seq + 1) * shape_.seq);
  }
  FOREBAY_ASSIGN_OR_RETURN(attention.segment_begin, gpu_.Indices(begin));
  FOREBAY_ASSIGN_OR_RETURN(attention.segment_end, gpu_.Indices(end));
  FOREBAY_ASSIGN_OR_RETURN(void* const q, Elements(of_queries));
  FOREBAY_ASSIGN_OR_RETURN(void* const k, Elements(of_keys));
  FOREBAY_ASSIGN_OR_RETURN(void* const v, Elements(of_keys));
  FOREBAY_ASSIGN_OR_RETURN(void* const o, Elements(of_queries));
  FOREBAY_ASSIGN_OR_RETURN(void* const d_o, Elements(of_queries));
  FOREBAY_ASSIGN_OR_RETURN(void* const dq, Elements(of_queries));
  FOREBAY_ASSIGN_OR_RETURN(void* const dk, Elements(of_keys));
  FOREBAY_ASSIGN_OR_RETURN(void* const dv, Elements(of_keys));
  FOREBAY_ASSIGN_OR_RETURN(float* const log_sum_exp, Floats(shape_.tokens * shape_.heads));
  cuda::Context& context = gpu_.context();
  // Two products of [seq, head_dim] by [head_dim, seq], of which causality needs half.
  const double flops = 2 * static_cast<double>(of_queries) * static_cast<double>(shape_.seq);
  const double bytes = kSize * static_cast<double>(2 * of_queries + 2 * of_keys);
  Add("attention forward", flops, bytes, [=, &context] {
    return cuda::AttentionForward(context, attention, q, k, v, o, log_sum_exp);
  });
  // Five such products; o and the gradients too are read or written.
  Add("attention backward", 2.5 * flops, 2 * bytes, [=, &context] {
    return cuda::AttentionBackward(context, attention, q, k, v, o, log_sum_exp, d_o, dq, dk, dv);
  });
  return absl::OkStatus();
}

absl::Status OperatorList::AddActivations() {
  const int64_t count = shape_.tokens * shape_.intermediate;
  FOREBAY_ASSIGN_OR_RETURN(void* const gate, Elements(count));
  FOREBAY_ASSIGN_OR_RETURN(void* const up, Elements(count));
  FOREBAY_ASSIGN_OR_RETURN(void* const out, Elements(count));
  FOREBAY_ASSIGN_OR_RETURN(void* const dgate, Elements(count));
  FOREBAY_ASSIGN_OR_RETURN(void* const dup, Elements(count));
  cuda::Context& context = gpu_.context();
  const double once = kSize * static_cast<double>(count);
  Add("swiglu forward", 0, 3 * once,
      [=, &context] { return cuda::SwiGluForward(context, gate, up, count, out); });
  Add("swiglu backward", 0, 5 * once,
      [=, &context] { return cuda::SwiGluBackward(context, gate, up, out, count, dgate, dup); });
  Add("gelu forward", 0, 2 * once,
      [=, &context] { return cuda::GeluTanhForward(context, gate, count, out); });
  Add("gelu backward", 0, 3 * once,
      [=, &context] { return cuda::GeluTanhBackward(context, gate, out, count, dgate); });
  return absl::OkStatus();
}

absl::Status OperatorList::AddEmbedding() {
  const int64_t tokens = shape_.tokens, hidden = shape_.hidden;
  const std::vector<int32_t> values = RandomTokens();
  // Places sorted by token, and where the runs of equal ones begin.
  std::vector<int32_t> order(values.size()), run_begin;
  std::iota(order.begin(), order.end(), 0);
  const auto token_at = [&](int32_t place) { return values[static_cast<size_t>(place)]; };
  std::ranges::stable_sort(order, {}, token_at);
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || token_at(order[i]) != token_at(order[i - 1])) {
      run_begin.push_back(static_cast<int32_t>(i));
    }
  }
  cuda::TokenRuns runs = {.num_runs = static_cast<int64_t>(run_begin.size())};
  run_begin.push_back(static_cast<int32_t>(order.size()));
  FOREBAY_ASSIGN_OR_RETURN(runs.order, gpu_.Indices(order));
  FOREBAY_ASSIGN_OR_RETURN(runs.run_begin, gpu_.Indices(run_begin));
  FOREBAY_ASSIGN_OR_RETURN(const int32_t* const of_place, gpu_.Indices(values));
  FOREBAY_ASSIGN_OR_RETURN(void* const table, Elements(shape_.vocab * hidden));
  FOREBAY_ASSIGN_OR_RETURN(void* const out, Elements(tokens * hidden));
  FOREBAY_ASSIGN_OR_RETURN(float* const dtable, Floats(shape_.vocab * hidden));
  cuda::Context& context = gpu_.context();
  Add("embedding forward", 0, 2 * kSize * static_cast<double>(tokens * hidden), [=, &context] {
    return cuda::EmbeddingForward(context, table, of_place, tokens, hidden, out, false);
  });
  const double bytes = kSize * static_cast<double>(tokens * hidden) +
                       8 * static_cast<double>(runs.num_runs * hidden);
  Add("embedding backward", 0, bytes, [=, &context] {
    return cuda::EmbeddingBackward(context, of_place, runs, hidden, out, dtable);
  });
  return absl::OkStatus();
}

absl::Status OperatorList::AddLoss() {
  const int64_t tokens = shape_.tokens, hidden = shape_.hidden;
  const int64_t weights = shape_.vocab * hidden;
  FOREBAY_ASSIGN_OR_RETURN(void* const weight, Elements(weights));
  FOREBAY_ASSIGN_OR_RETURN(void* const x, Elements(tokens * hidden));
  FOREBAY_ASSIGN_OR_RETURN(void* const dx, Elements(tokens * hidden));
  FOREBAY_ASSIGN_OR_RETURN(float* const dweight, Floats(weights));
  FOREBAY_ASSIGN_OR_RETURN(void* const loss_sum, gpu_.Zeros(sizeof(double)));
  FOREBAY_ASSIGN_OR_RETURN(const int32_t* const targets, gpu_.Indices(RandomTokens()));
  const Linear head = {.dtype = kType, .weight = weight, .in = hidden, .out = shape_.vocab};
  cuda::Context& context = gpu_.context();
  const double flops = 2 * static_cast<double>(tokens) * static_cast<double>(weights);
  const double bytes = kSize * static_cast<double>(tokens * hidden + weights);
  auto* const sum = static_cast<double*>(loss_sum);
  Add("cross_entropy forward", flops, bytes,
      [=, &context] { return cuda::CrossEntropyForward(context, head, x, targets, tokens, sum); });
  Add("cross_entropy forward and backward", 3 * flops, 2 * bytes + 8 * static_cast<double>(weights),
      [=, &context] {
        return cuda::CrossEntropyForwardBackward(context, head, x, targets, tokens, 1e-3, sum, dx,
                                                 dweight);
      });
  return absl::OkStatus();
}

absl::Status OperatorList::AddUpdate() {
  const int64_t n = shape_.update_elems;
  TileRun run = {.num_elems = n};
  FOREBAY_ASSIGN_OR_RETURN(run.weight, Elements(n));
  FOREBAY_ASSIGN_OR_RETURN(void* const remainder, gpu_.Zeros(2 * n));
  FOREBAY_ASSIGN_OR_RETURN(run.m, gpu_.Zeros(4 * n));
  FOREBAY_ASSIGN_OR_RETURN(run.v, gpu_.Zeros(4 * n));
  FOREBAY_ASSIGN_OR_RETURN(run.gradient, Elements(n));
  run.remainder = static_cast<int16_t*>(remainder);
  Stream& stream = gpu_.stream();
  // 12 bytes of state in and out, and the gradient in.
  Add("adamw update", 0, 26 * static_cast<double>(n), [=, &stream] {
    return stream.Launch([&](void* native_stream) {
      return UpdateRunCuda(OptimizerConfig(), {.step = 10, .lr = 1e-4}, run, native_stream);
    });
  });
  return absl::OkStatus();
}

}  // namespace

BenchShape FullShape() {
  return {.tokens = 4096,
          .seq = 2048,
          .hidden = 4096,
          .intermediate = 11008,
          .vocab = 32000,
          .heads = 32,
          .kv_heads = 32,
          .head_dim = 128,
          .update_elems = int64_t{64} << 20};
}
BenchShape TinyShape() {
  return {.tokens = 8,
          .seq = 4,
          .hidden = 32,
          .intermediate = 48,
          .vocab = 40,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 16,
          .update_elems = 2048};
}

int64_t ScratchBytesFor(const BenchShape& shape) {
  return cuda::ScratchBytes(kType, shape.tokens, shape.hidden, shape.intermediate, shape.vocab,
                            shape.heads, shape.head_dim);
}

absl::StatusOr<std::vector<BenchOperator>> MakeOperators(BenchGpu& gpu, const BenchShape& shape) {
  OperatorList list(gpu, shape);
  const int64_t of_queries = shape.heads * shape.head_dim;
  FOREBAY_RETURN_IF_ERROR(list.AddLinear("linear q", shape.hidden, of_queries));
  FOREBAY_RETURN_IF_ERROR(list.AddLinear("linear up", shape.hidden, shape.intermediate));
  FOREBAY_RETURN_IF_ERROR(list.AddLinear("linear down", shape.intermediate, shape.hidden));
  FOREBAY_RETURN_IF_ERROR(list.AddNorms());
  FOREBAY_RETURN_IF_ERROR(list.AddRope());
  FOREBAY_RETURN_IF_ERROR(list.AddAttention());
  FOREBAY_RETURN_IF_ERROR(list.AddActivations());
  FOREBAY_RETURN_IF_ERROR(list.AddEmbedding());
  FOREBAY_RETURN_IF_ERROR(list.AddLoss());
  FOREBAY_RETURN_IF_ERROR(list.AddUpdate());
  return list.Take();
}

absl::StatusOr<Roofs> MeasureRoofs(BenchGpu& gpu) {
  const int64_t side = gpu.settings().tiny ? 32 : 8192;
  const MatmulShape square = {.m = side, .n = side, .k = side, .transpose_b = true};
  FOREBAY_ASSIGN_OR_RETURN(void* const a, gpu.Random(side * side, kType));
  FOREBAY_ASSIGN_OR_RETURN(void* const b, gpu.Random(side * side, kType));
  FOREBAY_ASSIGN_OR_RETURN(void* const d, gpu.Random(side * side, kType));
  FOREBAY_ASSIGN_OR_RETURN(const double multiplied, gpu.MedianSeconds([&] {
    return gpu.context().matmul().Multiply(square, a, b, d, gpu.stream());
  }));
  const int64_t copied_bytes = gpu.settings().tiny ? 1 << 16 : int64_t{1} << 30;
  FOREBAY_ASSIGN_OR_RETURN(void* const from, gpu.Zeros(copied_bytes));
  FOREBAY_ASSIGN_OR_RETURN(void* const to, gpu.Zeros(copied_bytes));
  FOREBAY_ASSIGN_OR_RETURN(const double copied, gpu.MedianSeconds([&] {
    return gpu.stream().CopyOnDevice(to, from, copied_bytes);
  }));
  const auto n = static_cast<double>(side);
  return Roofs{2 * n * n * n / multiplied, 2 * static_cast<double>(copied_bytes) / copied};
}

}  // namespace forebay
