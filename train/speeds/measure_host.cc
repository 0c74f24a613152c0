#include "forebay/train/speeds/measure_host.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/open_engine.h"
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

constexpr size_t kNumBuffers = 4;  // of a block: weights, gradient, input, and what goes through it
constexpr int64_t kMostTokensOnCpu = 2048;

}  // namespace

MeasuredTokens TokensOnCpu(const TrainOptions& options) {
  return TokensToMeasure(options, kMostTokensOnCpu);
}

absl::StatusOr<double> MeasureBlock(const DecoderConfig& model, const TrainOptions& options,
                                    int num_threads, const std::function<bool()>& stop) {
  const DecoderConfig config = OneBlockOf(model);
  const MeasuredTokens tokens = TokensOnCpu(options);
  const int64_t num_tokens = tokens.num_tokens();
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<Decoder> decoder,
      Decoder::Create(
          config,
          {.num_threads = num_threads, .precision = options.precision, .max_tokens = num_tokens},
          &budget));
  const int layer = BlockLayer(0);
  const int64_t elems = decoder->inventory().layers()[layer].num_elems;
  const DType dtype = cpu::WeightDType(options.precision);
  const int64_t activation_bytes = ForwardBytes(config, num_tokens);
  std::array<HostBuffer, kNumBuffers> memory;
  const std::array<int64_t, kNumBuffers> sizes = {
      elems * SizeOf(dtype), elems * int64_t{sizeof(float)}, activation_bytes, activation_bytes};
  for (size_t i = 0; i < memory.size(); ++i) {
    FOREBAY_ASSIGN_OR_RETURN(memory[i], HostBuffer::Create(&budget, "measurement", sizes[i]));
  }
  FillRandom(dtype, memory[0].bytes());
  FillRandom(DType::kF32, memory[2].bytes());
  const LayerWeights weights = {.dtype = dtype, .data = memory[0].bytes()};
  const MicroBatch batch = BatchOf(tokens);
  const std::span<float> x = memory[2].As<float>(), dx = memory[3].As<float>();
  FOREBAY_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stop, [&] {
                             std::ranges::copy(x, dx.begin());
                             decoder->ForwardBlock(0, weights, batch, dx);
                             decoder->RecomputeBlock(0, weights, batch, x);
                             decoder->BackwardBlock(0, weights, batch, x, dx,
                                                    memory[1].As<float>());
                             return absl::OkStatus();
                           }));
  DecoderFlops flops = FlopsOf(config, num_tokens, tokens.seq);
  const double head = 2.0 * static_cast<double>(num_tokens * config.vocab_size) *
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
                             return absl::OkStatus();
                           }));
  return static_cast<double>(2 * (tiles.WeightBytes(tile) + tiles.StateBytes(tile)) +
                             gradient_bytes) /
         seconds;
}

absl::StatusOr<DiskSpeed> MeasureDisk(const TrainOptions& options, const std::string& folder,
                                      const std::function<bool()>& stop) {
  const EngineOptions engine{.engine = options.engine, .strict = options.engine_strict};
  FOREBAY_ASSIGN_OR_RETURN(const OpenedEngine opened, OpenEngine(engine, {folder}));
  return ProbeSpeed(*opened.engine, folder, stop);
}

}  // namespace forebay
