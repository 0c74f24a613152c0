// Memory bandwidth of the update kernels beside that of a plain read-modify-write of the same
// streams, which is their roof. Run the two in turn, since machines drift:
//   build/bench_bin/optimizer_bench --benchmark_enable_random_interleaving=true
//   --benchmark_repetitions=5
// bytes_per_second counts what the algorithm must move: weights, remainders and moments in and out,
// gradients in.
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/process/parallel.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/kernels/tile_update.h"

namespace forebay {
namespace {

// Far beyond every cache.
constexpr int64_t kNumElems = int64_t{16} << 20;
constexpr int64_t kTaskElems = int64_t{16} << 10;
constexpr UpdateScalars kScalars = {.step = 10, .lr = 1e-4, .gradient_scale = 0.5};

struct Format {
  WeightFormat weights = WeightFormat::kSplitBf16;
  MomentFormat moments = MomentFormat::kFp32;
};
constexpr Format kBf16;
constexpr Format kFp16 = {.weights = WeightFormat::kFp16};
constexpr Format kFp32 = {.weights = WeightFormat::kFp32};
constexpr Format kBf16Moments = {.moments = MomentFormat::kBf16};
constexpr Format kInt8Moments = {.moments = MomentFormat::kInt8};

// Of one plane, in whole bytes an element.
struct Plane {
  Plane(int64_t bytes, uint16_t value) : elem_bytes(bytes), values(kNumElems * bytes / 2, value) {}
  void* data() { return values.empty() ? nullptr : values.data(); }
  int64_t elem_bytes;
  std::vector<uint16_t> values;
};

struct Planes {
  Planes(const OptimizerConfig& config, const Format& planes_format)
      : format(planes_format),
        weight(WeightBytesPerElem(format.weights), 0x3c01),
        remainder(format.weights == WeightFormat::kSplitBf16 ? 2 : 0, 1),
        master(format.weights == WeightFormat::kFp16 ? 4 : 0, 0x3c01),
        m(HasFirstMoment(config) ? MomentBytesPerElem(format.moments) : 0, 0x3a01),
        v(HasSecondMoment(config) ? MomentBytesPerElem(format.moments) : 0, 0x3501),
        m_scale(kNumElems / kMomentBlockElems, 0x3a80),
        v_scale(kNumElems / kMomentBlockElems, 0x3a80),
        gradient(2, 0x3a01) {}

  TileRun Task(int64_t task) {
    TileRun run;
    run.num_elems = kNumElems;
    run.weights = format.weights;
    run.weight = weight.data();
    run.remainder = static_cast<int16_t*>(remainder.data());
    run.master = static_cast<float*>(master.data());
    run.moments = format.moments;
    run.m = m.data();
    run.v = v.data();
    if (format.moments == MomentFormat::kInt8) {
      run.m_scale = m_scale.data();
      run.v_scale = v_scale.data();
    }
    run.gradient = gradient.data();
    return PartOf(run, task * kTaskElems, kTaskElems);
  }
  // What is read and written.
  std::vector<Plane*> Written() { return {&weight, &remainder, &master, &m, &v}; }
  int64_t BytesPerElem() {
    int64_t bytes = gradient.elem_bytes;
    // The scales of 8-bit moments are a sixteenth of a byte each and not counted.
    for (const Plane* plane : Written()) bytes += 2 * plane->elem_bytes;
    return bytes;
  }

  Format format;
  Plane weight, remainder, master, m, v;
  std::vector<uint16_t> m_scale, v_scale;
  Plane gradient;
};

void SetCounters(benchmark::State& state, int64_t bytes_per_elem) {
  state.SetBytesProcessed(state.iterations() * kNumElems * bytes_per_elem);
  state.counters["time_per_param"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kNumElems),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Update(benchmark::State& state, const OptimizerConfig& config, const Format& format) {
  Planes planes(config, format);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kTaskElems,
                     [&](int64_t task) { UpdateRun(config, kScalars, planes.Task(task)); });
  }
  SetCounters(state, planes.BytesPerElem());
}

// The roof: the same planes, the least arithmetic.
void ReadModifyWrite(benchmark::State& state, const Format& format) {
  Planes planes({}, format);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kTaskElems, [&](int64_t task) {
      constexpr int64_t kStride = 1024;  // all streams advance together, as in the kernel
      uint32_t sum = 0;
      for (int64_t first = task * kTaskElems; first < (task + 1) * kTaskElems; first += kStride) {
        for (Plane* plane : planes.Written()) {
          uint16_t* const values = plane->values.data() + first * plane->elem_bytes / 2;
          for (int64_t i = 0; i < kStride * plane->elem_bytes / 2; ++i) ++values[i];
        }
        for (int64_t i = 0; i < kStride; ++i) sum += planes.gradient.values[first + i];
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  SetCounters(state, planes.BytesPerElem());
}

#ifdef __SSE2__
enum class Access : uint8_t { kUsual, kStoresPastCaches, kPrefetched };

// The plain loop over the planes of the layout bf16, with stores that go past the caches, or with
// lines fetched before they are used: whether either would pay in the kernels.
void ReadModifyWriteBy(benchmark::State& state, Access access) {
  Planes planes({}, kBf16);
  ThreadPool pool(static_cast<int>(state.range(0)));
  const __m128i one = _mm_set1_epi16(1);
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kTaskElems, [&](int64_t task) {
      constexpr int64_t kStride = 1024;
      constexpr int64_t kPrefetchBytes = 1024;
      constexpr int64_t kLineBytes = 64;
      __m128i sum = _mm_setzero_si128();
      const auto fetch = [&](const __m128i* at) {
        if (access != Access::kPrefetched || reinterpret_cast<uintptr_t>(at) % kLineBytes != 0)
          return;
        _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes, _MM_HINT_T0);
      };
      for (int64_t first = task * kTaskElems; first < (task + 1) * kTaskElems; first += kStride) {
        for (Plane* plane : planes.Written()) {
          auto* const values =
              reinterpret_cast<__m128i*>(plane->values.data() + first * plane->elem_bytes / 2);
          for (int64_t i = 0; i < kStride * plane->elem_bytes / 16; ++i) {
            fetch(values + i);
            const __m128i next = _mm_add_epi16(_mm_load_si128(values + i), one);
            if (access == Access::kStoresPastCaches) {
              _mm_stream_si128(values + i, next);
            } else {
              _mm_store_si128(values + i, next);
            }
          }
        }
        const auto* const gradients =
            reinterpret_cast<const __m128i*>(planes.gradient.values.data() + first);
        for (int64_t i = 0; i < kStride / 8; ++i) {
          fetch(gradients + i);
          sum = _mm_add_epi16(sum, _mm_load_si128(gradients + i));
        }
      }
      benchmark::DoNotOptimize(sum);
      _mm_sfence();
    });
  }
  SetCounters(state, planes.BytesPerElem());
}
#endif

// fp32 in, bf16 out.
void RoundGradient(benchmark::State& state) {
  const std::vector<float> gradient(kNumElems, 1e-3f);
  std::vector<Bf16> rounded(kNumElems);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kNormBlockElems, [&](int64_t block) {
      benchmark::DoNotOptimize(RoundAndSumSquares(gradient.data() + block * kNormBlockElems,
                                                  kNormBlockElems, DType::kBF16,
                                                  rounded.data() + block * kNormBlockElems));
    });
  }
  SetCounters(state, 6);
}

// All that lies between the sum of a step's gradients and its new 16-bit weights: rounding and
// norm, then, when the norm is known, one pass that clips, updates and rounds.
void WholePhase(benchmark::State& state) {
  const std::vector<float> sums(kNumElems, 1e-3f);
  Planes planes({}, {});
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::vector<double> squares(kNumElems / kNormBlockElems);
  auto* const gradient = planes.gradient.values.data();
  for (auto _ : state) {
    pool.ParallelFor(kNumElems / kNormBlockElems, [&](int64_t block) {
      const int64_t first = block * kNormBlockElems;
      squares[block] =
          RoundAndSumSquares(sums.data() + first, kNormBlockElems, DType::kBF16, gradient + first);
    });
    double sum = 0;
    for (const double square : squares) sum += square;
    UpdateScalars scalars = kScalars;
    scalars.gradient_scale = 1.0 / (sum + 1e-6);
    pool.ParallelFor(kNumElems / kTaskElems,
                     [&](int64_t task) { UpdateRun({}, scalars, planes.Task(task)); });
  }
  SetCounters(state, planes.BytesPerElem() + 6);
}

constexpr OptimizerConfig kAdamW;
constexpr OptimizerConfig kLion = {.kind = OptimizerKind::kLion};

BENCHMARK_CAPTURE(Update, bf16, kAdamW, kBf16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWrite, bf16, kBf16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(Update, fp16, kAdamW, kFp16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWrite, fp16, kFp16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(Update, fp32, kAdamW, kFp32)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWrite, fp32, kFp32)->Arg(1)->Arg(2)->UseRealTime();
#ifdef __SSE2__
BENCHMARK_CAPTURE(ReadModifyWriteBy, usual, Access::kUsual)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWriteBy, stores_past_caches, Access::kStoresPastCaches)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime();
BENCHMARK_CAPTURE(ReadModifyWriteBy, prefetched, Access::kPrefetched)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime();
#endif
BENCHMARK_CAPTURE(Update, bf16_moments, kAdamW, kBf16Moments)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(Update, int8_moments, kAdamW, kInt8Moments)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(Update, lion_bf16, kLion, kBf16)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(WholePhase)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(RoundGradient)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace forebay

BENCHMARK_MAIN();
