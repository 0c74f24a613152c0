// What a scope of base/trace.h costs, without a recording and in one.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "benchmark/benchmark.h"
#include "forebay/base/trace.h"

namespace forebay {
namespace {

void Scope(benchmark::State& state) {
  for (auto _ : state) {
    const TraceScope scope("scope", {.layer = 1});
    benchmark::DoNotOptimize(&scope);
  }
}
BENCHMARK(Scope);

void ScopeInARecording(benchmark::State& state) {
  constexpr int64_t kNumEvents = int64_t{1} << 22;
  std::vector<int64_t> memory(kNumEvents * sizeof(TraceEvent) / sizeof(int64_t));
  TraceRecorder recorder(std::as_writable_bytes(std::span(memory)));
  recorder.Start();
  for (auto _ : state) {
    const TraceScope scope("scope", {.layer = 1});
    benchmark::DoNotOptimize(&scope);
  }
  recorder.Stop();
}
BENCHMARK(ScopeInARecording)->Iterations(1 << 21);

}  // namespace
}  // namespace forebay

BENCHMARK_MAIN();
