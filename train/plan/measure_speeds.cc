#include "forebay/train/plan/measure_speeds.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/open_engine.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/clock.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/process/parallel.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_flops.h"
#include "forebay/offload/offload_options.h"
#include "forebay/optimizer/tile_arithmetic.h"
#include "forebay/optimizer/tile_run.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {
namespace {

constexpr double kSecondsOfEach = 1.5;
constexpr size_t kNumBuffers = 4;  // of a block: weights, gradient, input, and what goes through it
constexpr int64_t kMostTokens = 2048;
constexpr int64_t kMostVocab = 1024;  // the head is not measured: it is one more product

constexpr int kDiskTurns = 3;

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The usual time of a call: of several within kSecondsOfEach, behind one that warms up.
absl::StatusOr<double> MedianSeconds(const std::function<bool()>& stop,
                                     const std::function<void()>& call) {
  constexpr int kLeastCalls = 3;
  call();
  const Stopwatch all;
  std::vector<double> seconds;
  while (seconds.size() < kLeastCalls || all.Seconds() < kSecondsOfEach) {
    if (stop()) return InterruptedError("stopped on request");
    const Stopwatch one;
    call();
    seconds.push_back(one.Seconds());
  }
  return MedianOf(std::move(seconds));
}

DecoderConfig OneBlockOf(DecoderConfig config) {
  config.num_layers = 1;
  config.vocab_size = std::min(config.vocab_size, kMostVocab);
  if (!config.window.empty()) config.window.resize(1);
  return config;
}

MicroBatch RowsOf(int64_t num_rows, int64_t seq) {
  MicroBatch batch;
  for (int64_t row = 0; row < num_rows; ++row) {
    batch.segments.push_back({.begin = row * seq, .length = seq});
    for (int64_t i = 0; i < seq; ++i) batch.positions.push_back(static_cast<int32_t>(i));
  }
  batch.tokens.resize(batch.positions.size(), 0);
  batch.targets.resize(batch.positions.size(), 0);
  batch.num_tokens = batch.num_trained = num_rows * seq;
  return batch;
}

void FillRandom(DType dtype, std::span<std::byte> to) {
  const CounterRng rng(/*seed=*/1);
  const size_t num_elems = to.size() / static_cast<size_t>(SizeOf(dtype));
  for (size_t i = 0; i < num_elems; ++i) {
    const float value = 0.02f * static_cast<float>(rng.Normal(i % 4096));
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(to.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(to.data())[i] =
          dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
    }
  }
}

}  // namespace

MeasuredTokens TokensToMeasure(const TrainOptions& options) {
  const int64_t seq = std::min(options.seq, kMostTokens);
  return {.rows = std::clamp<int64_t>(kMostTokens / seq, 1, options.batch), .seq = seq};
}

absl::StatusOr<double> MeasureBlock(const DecoderConfig& model, const TrainOptions& options,
                                    int num_threads, const std::function<bool()>& stop) {
  const DecoderConfig config = OneBlockOf(model);
  const auto [rows, seq] = TokensToMeasure(options);
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<Decoder> decoder,
      Decoder::Create(
          config,
          {.num_threads = num_threads, .precision = options.precision, .max_tokens = rows * seq},
          &budget));
  const int layer = BlockLayer(0);
  const int64_t elems = decoder->inventory().layers()[layer].num_elems;
  const DType dtype = cpu::WeightDType(options.precision);
  const int64_t activation_bytes = ForwardBytes(config, rows * seq);
  std::array<HostBuffer, kNumBuffers> memory;
  const std::array<int64_t, kNumBuffers> sizes = {
      elems * SizeOf(dtype), elems * int64_t{sizeof(float)}, activation_bytes, activation_bytes};
  for (size_t i = 0; i < memory.size(); ++i) {
    FOREBAY_ASSIGN_OR_RETURN(memory[i], HostBuffer::Create(&budget, "measurement", sizes[i]));
  }
  FillRandom(dtype, memory[0].bytes());
  FillRandom(DType::kF32, memory[2].bytes());
  const LayerWeights weights = {.dtype = dtype, .data = memory[0].bytes()};
  const MicroBatch batch = RowsOf(rows, seq);
  const std::span<float> x = memory[2].As<float>(), dx = memory[3].As<float>();
  FOREBAY_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stop, [&] {
                             std::ranges::copy(x, dx.begin());
                             decoder->ForwardBlock(0, weights, batch, dx);
                             decoder->RecomputeBlock(0, weights, batch, x);
                             decoder->BackwardBlock(0, weights, batch, x, dx,
                                                    memory[1].As<float>());
                           }));
  DecoderFlops flops = FlopsOf(config, rows * seq, seq);
  const double head = 2.0 * static_cast<double>(rows * seq * config.vocab_size) *
                      static_cast<double>(config.hidden_size);
  return (flops.forward - head + flops.backward - 2 * head) / seconds;
}

absl::StatusOr<double> MeasureUpdate(const TrainOptions& options, int num_threads,
                                     const std::function<bool()>& stop) {
  constexpr int64_t kElems = int64_t{16} << 20;  // larger than caches are
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("tensor", {kElems}, 0, /*decay=*/true);
  const TileMap tiles(inventory, options.layout, kElems, {1}, MomentsOf(RuleOf(options)));
  const Tile& tile = tiles.tiles()[0];
  const int64_t gradient_bytes = kElems * SizeOf(options.grad_dtype);
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(
      const HostBuffer memory,
      HostBuffer::Create(&budget, "measurement",
                         tiles.WeightBytes(tile) + tiles.StateBytes(tile) + gradient_bytes));
  const auto weights = memory.bytes().first(static_cast<size_t>(tiles.WeightBytes(tile)));
  const auto state =
      memory.bytes().subspan(weights.size(), static_cast<size_t>(tiles.StateBytes(tile)));
  TileRun run = RunOf(tiles, tile, weights, state);
  run.gradient = memory.bytes().data() + weights.size() + state.size();
  run.gradient_dtype = options.grad_dtype;
  const RuleArithmetic rule(RuleOf(options));
  ThreadPool pool(num_threads);
  constexpr int64_t kTaskElems = 1 << 16;
  FOREBAY_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stop, [&] {
                             pool.ParallelFor(kElems / kTaskElems, [&](int64_t task) {
                               rule.Update({.step = 1, .lr = 1e-3},
                                           PartOf(run, task * kTaskElems, kTaskElems));
                             });
                           }));
  return static_cast<double>(2 * (tiles.WeightBytes(tile) + tiles.StateBytes(tile)) +
                             gradient_bytes) /
         seconds;
}

absl::StatusOr<DiskSpeed> MeasureDisk(const TrainOptions& options, const std::string& folder,
                                      const std::function<bool()>& stop) {
  const EngineOptions engine{.engine = options.engine, .strict = options.engine_strict};
  FOREBAY_ASSIGN_OR_RETURN(const OpenedEngine opened, OpenEngine(engine, {folder}));
  std::vector<double> reads, writes;
  for (int turn = 0; turn < kDiskTurns; ++turn) {
    FOREBAY_ASSIGN_OR_RETURN(const DiskSpeed speed, ProbeSpeed(*opened.engine, folder, stop));
    reads.push_back(speed.read_bytes_per_s);
    writes.push_back(speed.write_bytes_per_s);
  }
  return DiskSpeed{.read_bytes_per_s = MedianOf(reads), .write_bytes_per_s = MedianOf(writes)};
}

}  // namespace forebay
