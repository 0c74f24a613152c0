// Speed of model/cpu on the shapes of a SmolLM2-135M step (1,024 tokens): matrix products beside
// the same product by one oneDNN call with its own OpenMP threads, and the other operators by the
// bytes that they must move.
//   model_ops_bench --benchmark_filter=Forward --threads=2
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <dnnl.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/model/cpu/ops.h"

namespace forebay::cpu {
namespace {

constexpr int64_t kTokens = 1024;
constexpr int64_t kHidden = 576;
constexpr int64_t kHeads = 9;
constexpr int64_t kKvHeads = 3;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kIntermediate = 1536;
constexpr int64_t kVocab = 49152;

int g_num_threads = 2;

std::vector<float> Random(int64_t count, double scale = 1.0) {
  const CounterRng rng(static_cast<uint64_t>(count));
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((rng.Uniform(i) - 0.5) * scale);
  }
  return values;
}
std::vector<Bf16> RandomBf16(int64_t count) {
  std::vector<Bf16> values;
  for (const float value : Random(count, 0.1)) values.push_back(FloatToBf16(value));
  return values;
}

void CountFlops(benchmark::State& state, double flops_per_iteration) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops_per_iteration * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void CountBytes(benchmark::State& state, int64_t bytes_per_iteration) {
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes_per_iteration) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

enum class Pass { kForward, kInput, kWeight };

void LinearPass(benchmark::State& state, Pass pass, DType dtype, int64_t tokens, int64_t in,
                int64_t out) {
  Context context(g_num_threads, dtype == DType::kF32 ? Precision::kFp32 : Precision::kBf16);
  const std::vector<Bf16> narrow = RandomBf16(in * out);
  const std::vector<float> wide = Random(in * out);
  const std::vector<float> x = Random(tokens * in), dy = Random(tokens * out);
  std::vector<float> y(dy.size()), dx(x.size()), dweight(wide.size());
  const bool is_bf16 = dtype == DType::kBF16;
  const Linear linear{.dtype = dtype,
                      .weight = is_bf16 ? static_cast<const void*>(narrow.data()) : wide.data(),
                      .in = in,
                      .out = out};
  for (auto _ : state) {
    if (pass == Pass::kForward) LinearForward(context, linear, x.data(), tokens, y.data());
    if (pass == Pass::kInput)
      LinearBackwardInput(context, linear, dy.data(), tokens, dx.data(), false);
    if (pass == Pass::kWeight) {
      LinearBackwardWeight(context, linear, x.data(), dy.data(), tokens, dweight.data(), nullptr);
    }
  }
  state.SetLabel(context.kernel_identity());
  CountFlops(state, 2.0 * static_cast<double>(tokens * in * out));
}

// The peer: one call that oneDNN spreads over its own threads.
void OneCall(benchmark::State& state, Pass pass, int64_t tokens, int64_t in, int64_t out) {
  if (void* set_num_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(set_num_threads)(g_num_threads);
  }
  const std::vector<float> weight = Random(in * out), x = Random(tokens * in),
                           dy = Random(tokens * out);
  std::vector<float> y(dy.size()), dx(x.size()), dweight(weight.size());
  for (auto _ : state) {
    if (pass == Pass::kForward) {
      dnnl_sgemm('N', 'T', tokens, out, in, 1, x.data(), in, weight.data(), in, 0, y.data(), out);
    } else if (pass == Pass::kInput) {
      dnnl_sgemm('N', 'N', tokens, in, out, 1, dy.data(), out, weight.data(), in, 0, dx.data(), in);
    } else {
      dnnl_sgemm('T', 'N', out, in, tokens, 1, dy.data(), out, x.data(), in, 1, dweight.data(), in);
    }
  }
  CountFlops(state, 2.0 * static_cast<double>(tokens * in * out));
}

void RegisterLinear(int64_t tokens, int64_t in, int64_t out) {
  const std::string shape =
      std::to_string(tokens) + "x" + std::to_string(in) + "x" + std::to_string(out);
  for (const auto& [pass, name] : {std::pair<Pass, const char*>{Pass::kForward, "Forward"},
                                   {Pass::kInput, "BackwardInput"},
                                   {Pass::kWeight, "BackwardWeight"}}) {
    const std::string prefix = std::string(name) + "/" + shape;
    benchmark::RegisterBenchmark((prefix + "/bf16").c_str(), LinearPass, pass, DType::kBF16, tokens,
                                 in, out)
        ->UseRealTime();
    benchmark::RegisterBenchmark((prefix + "/fp32").c_str(), LinearPass, pass, DType::kF32, tokens,
                                 in, out)
        ->UseRealTime();
    benchmark::RegisterBenchmark((prefix + "/onednn_one_call").c_str(), OneCall, pass, tokens, in,
                                 out)
        ->UseRealTime();
  }
}

void OneRow(benchmark::State& state) {
  Context context(g_num_threads, Precision::kBf16);
  const std::vector<Bf16> weight = RandomBf16(kVocab * kHidden);
  const std::vector<float> x = Random(kHidden);
  std::vector<float> y(kVocab);
  for (auto _ : state) {
    Logits(context, {.weight = weight.data(), .in = kHidden, .out = kVocab}, x.data(), 1, y.data());
  }
  CountBytes(state, kVocab * kHidden * 2);
}

// One sequence or four of `tokens` in all.
void AttentionPass(benchmark::State& state, int64_t tokens, int64_t num_segments, bool backward) {
  Context context(g_num_threads, Precision::kBf16);
  std::vector<Segment> segments;
  const int64_t length = tokens / num_segments;
  for (int64_t i = 0; i < num_segments; ++i) segments.push_back({i * length, length});
  const AttentionShape shape{tokens, kHeads, kKvHeads, kHeadDim, 0, segments};
  const std::vector<float> q = Random(tokens * kHidden), kv = Random(tokens * kKvHeads * kHeadDim);
  std::vector<float> o(q.size()), log_sum_exp(static_cast<size_t>(kHeads * tokens)), dq(q.size()),
      dk(kv.size()), dv(kv.size());
  AttentionForward(context, shape, q.data(), kv.data(), kv.data(), o.data(), log_sum_exp.data());
  for (auto _ : state) {
    if (backward) {
      AttentionBackward(context, shape, q.data(), kv.data(), kv.data(), o.data(),
                        log_sum_exp.data(), q.data(), dq.data(), dk.data(), dv.data());
    } else {
      AttentionForward(context, shape, q.data(), kv.data(), kv.data(), o.data(),
                       log_sum_exp.data());
    }
  }
  // Of the lower triangle: two products forward, five backward.
  const double visible = static_cast<double>(num_segments * length * (length + 1) / 2);
  CountFlops(state, (backward ? 5 : 2) * 2 * visible * static_cast<double>(kHidden));
}

void SwiGluPass(benchmark::State& state, bool backward) {
  Context context(g_num_threads, Precision::kBf16);
  const int64_t count = kTokens * kIntermediate;
  const std::vector<float> gate = Random(count, 8), up = Random(count);
  std::vector<float> dgate(gate.size()), dup(gate.size());
  for (auto _ : state) {
    if (backward) {
      SwiGluBackward(context, gate.data(), up.data(), up.data(), count, dgate.data(), dup.data());
    } else {
      SwiGluForward(context, gate.data(), up.data(), count, dgate.data());
    }
  }
  CountBytes(state, count * 4 * (backward ? 5 : 3));
}

void RmsNormPass(benchmark::State& state, bool backward) {
  Context context(g_num_threads, Precision::kBf16);
  const std::vector<float> x = Random(kTokens * kHidden);
  const std::vector<Bf16> weight = RandomBf16(kHidden);
  std::vector<float> y(x.size()), inverse_rms(kTokens), dweight(kHidden);
  for (auto _ : state) {
    if (backward) {
      RmsNormBackward(context, x.data(), weight.data(), DType::kBF16, inverse_rms.data(), x.data(),
                      kTokens, kHidden, y.data(), true, dweight.data());
    } else {
      RmsNormForward(context, x.data(), weight.data(), DType::kBF16, 1e-5, kTokens, kHidden,
                     y.data(), inverse_rms.data());
    }
  }
  CountBytes(state, kTokens * kHidden * 4 * (backward ? 4 : 2));
}

void LossPass(benchmark::State& state) {
  Context context(g_num_threads, Precision::kBf16);
  const std::vector<Bf16> weight = RandomBf16(kVocab * kHidden);
  const std::vector<float> x = Random(kTokens * kHidden);
  const std::vector<int32_t> targets(kTokens, 7);
  std::vector<float> dx(x.size()), dweight(weight.size());
  for (auto _ : state) {
    CrossEntropyForwardBackward(context, {.weight = weight.data(), .in = kHidden, .out = kVocab},
                                x.data(), targets, 1.0, dx.data(), dweight.data());
  }
  CountFlops(state, 6.0 * static_cast<double>(kTokens * kHidden * kVocab));
}

void RegisterAll() {
  for (const auto& [in, out] : {std::pair{kHidden, kHidden},
                                {kHidden, kKvHeads * kHeadDim},
                                {kHidden, kIntermediate},
                                {kIntermediate, kHidden}}) {
    RegisterLinear(kTokens, in, out);
  }
  RegisterLinear(256, kHidden, kVocab);  // a chunk of the loss
  benchmark::RegisterBenchmark("OneRow/576x49152/bf16", OneRow)->UseRealTime();
  for (const int64_t num_segments : {4, 1}) {
    const std::string name =
        std::to_string(num_segments) + "x" + std::to_string(kTokens / num_segments);
    benchmark::RegisterBenchmark(("Attention/" + name).c_str(), AttentionPass, kTokens,
                                 num_segments, false)
        ->UseRealTime();
    benchmark::RegisterBenchmark(("AttentionBackward/" + name).c_str(), AttentionPass, kTokens,
                                 num_segments, true)
        ->UseRealTime();
  }
  benchmark::RegisterBenchmark("SwiGlu", SwiGluPass, false)->UseRealTime();
  benchmark::RegisterBenchmark("SwiGluBackward", SwiGluPass, true)->UseRealTime();
  benchmark::RegisterBenchmark("RmsNorm", RmsNormPass, false)->UseRealTime();
  benchmark::RegisterBenchmark("RmsNormBackward", RmsNormPass, true)->UseRealTime();
  benchmark::RegisterBenchmark("LossAndGradient", LossPass)->UseRealTime();
}

// Takes --threads=N out of the arguments.
void ParseThreads(int& argc, char** argv) {
  constexpr std::string_view kFlag = "--threads=";
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kFlag)) {
      std::from_chars(argument.data() + kFlag.size(), argument.data() + argument.size(),
                      g_num_threads);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
}

}  // namespace
}  // namespace forebay::cpu

int main(int argc, char** argv) {
  forebay::cpu::ParseThreads(argc, argv);
  forebay::cpu::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
