// Memory bandwidth of the AdamW kernels beside that of a plain read-modify-write of the same
// streams, which is their roof. Run the two in turn, since machines drift:
//   build/bench_bin/optimizer_bench --benchmark_enable_random_interleaving=true
//   --benchmark_repetitions=5
// bytes_per_second counts what the algorithm must move: weights, remainders and moments in and out,
// gradients in.
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "forebay/base/parallel.h"
#include "forebay/optimizer/adamw.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {
namespace {

// Far beyond every cache.
constexpr int64_t kNumElems = int64_t{16} << 20;
constexpr int64_t kTaskElems = int64_t{16} << 10;
constexpr AdamWConfig kConfig;
constexpr AdamWStep kStep = {.step = 10, .lr = 1e-4, .gradient_scale = 0.5};

struct Planes {
  explicit Planes(Layout layout)
      : weight(kNumElems * WeightBytesPerElem(layout) / 2, 0x3c01),
        remainder(layout == Layout::kBf16 ? kNumElems : 0, 1),
        m(kNumElems, 1e-3f),
        v(kNumElems, 1e-6f),
        gradient(kNumElems, 0x3a01) {}

  AdamWTile Task(Layout layout, int64_t task) {
    AdamWTile tile;
    tile.layout = layout;
    tile.num_elems = kNumElems;
    tile.weight = weight.data();
    tile.remainder = remainder.empty() ? nullptr : remainder.data();
    tile.m = m.data();
    tile.v = v.data();
    tile.gradient = gradient.data();
    return Part(tile, task * kTaskElems, kTaskElems, /*decay=*/true);
  }

  std::vector<uint16_t> weight;
  std::vector<int16_t> remainder;
  std::vector<float> m, v;
  std::vector<uint16_t> gradient;  // bf16
};

void SetCounters(benchmark::State& state, int64_t bytes_per_elem) {
  state.SetBytesProcessed(state.iterations() * kNumElems * bytes_per_elem);
  state.counters["time_per_param"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kNumElems),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

int64_t BytesPerElem(Layout layout) {
  return 2 * (WeightBytesPerElem(layout) + StateBytesPerElem(layout)) + 2;
}

void AdamW(benchmark::State& state, Layout layout) {
  Planes planes(layout);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kTaskElems,
                     [&](int64_t task) { AdamWSimd(kConfig, kStep, planes.Task(layout, task)); });
  }
  SetCounters(state, BytesPerElem(layout));
}

template <typename T>
void AddOne(T* values, int64_t num_values) {
  for (int64_t i = 0; i < num_values; ++i) values[i] = static_cast<T>(values[i] + T{1});
}

// The roof: the same planes, the least arithmetic.
void ReadModifyWrite(benchmark::State& state, Layout layout) {
  Planes planes(layout);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kTaskElems, [&](int64_t task) {
      constexpr int64_t kStride = 1024;  // all streams advance together, as in the kernel
      const AdamWTile whole = planes.Task(layout, task);
      uint32_t sum = 0;
      for (int64_t first = 0; first < kTaskElems; first += kStride) {
        const AdamWTile part = Part(whole, first, kStride, /*decay=*/true);
        AddOne(static_cast<uint16_t*>(part.weight), kStride * WeightBytesPerElem(layout) / 2);
        if (part.remainder != nullptr) AddOne(part.remainder, kStride);
        AddOne(part.m, kStride);
        AddOne(part.v, kStride);
        const auto* gradient = static_cast<const uint16_t*>(part.gradient);
        for (int64_t i = 0; i < kStride; ++i) sum += gradient[i];
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  SetCounters(state, BytesPerElem(layout));
}

// fp32 in, bf16 out.
void RoundGradient(benchmark::State& state) {
  const std::vector<float> gradient(kNumElems, 1e-3f);
  std::vector<Bf16> rounded(kNumElems);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kNormBlockElems, [&](int64_t block) {
      benchmark::DoNotOptimize(RoundAndSumSquares(gradient.data() + block * kNormBlockElems,
                                                  kNormBlockElems,
                                                  rounded.data() + block * kNormBlockElems));
    });
  }
  SetCounters(state, 6);
}

BENCHMARK_CAPTURE(AdamW, bf16, Layout::kBf16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWrite, bf16, Layout::kBf16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(AdamW, fp32, Layout::kFp32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWrite, fp32, Layout::kFp32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(RoundGradient)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace forebay

BENCHMARK_MAIN();
