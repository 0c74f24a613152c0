// What becomes of a tile: by the swapper's thread as its layer comes in, or by the optimizer's own.
#include <algorithm>
#include <mutex>
#include <span>

#include "fmt/format.h"
#include "forebay/base/activity.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/offloaded_optimizer_impl.h"
#include "forebay/swap/records/tile_seals.h"

namespace forebay {
namespace {

// Elements per task of an update: what has a checksum of its own, so that a task verifies, updates
// and seals it while it is in the cache. Updates are elementwise, or of whole blocks, so the cut
// does not show in the result.
constexpr int64_t kTaskElems = kSealElems;
static_assert(kTaskElems % kMomentBlockElems == 0 && kTensorAlignElems % kMomentBlockElems == 0);

}  // namespace

// ---- Update ------------------------------------------------------------------------------------

bool OffloadedOptimizer::Impl::AnyIsDue() const {
  // Acquire: what the swapper's thread did for a layer happened before its update ceased to be due.
  return std::any_of(due.begin(), due.end(), [](const std::atomic<bool>& layer_is_due) {
    return layer_is_due.load(std::memory_order_acquire);
  });
}

bool OffloadedOptimizer::AnyUpdateIsDue() const {
  return impl_->AnyIsDue() || impl_->delayed_is_pending;
}

bool OffloadedOptimizer::UpdateIsDue(int layer) const {
  return impl_->due[layer].load(std::memory_order_acquire);
}

absl::Status OffloadedOptimizer::UpdateLayer(int layer, std::span<std::byte> weights) {
  Impl& impl = *impl_;
  FOREBAY_RETURN_IF_ERROR(impl.Failure());
  FOREBAY_CHECK(UpdateIsDue(layer));
  FOREBAY_CHECK(static_cast<int64_t>(weights.size()) ==
                impl.tiles.layer_elems(layer) * WeightBytesPerElem(impl.tiles.layout()));
  const Stopwatch stopwatch;
  impl.tile_wait_s = 0;
  for (int i = impl.tiles.first_tile(layer); i < impl.tiles.first_tile(layer + 1); ++i) {
    const Tile& tile = impl.tiles.tiles()[i];
    const absl::Status status = impl.UpdateTile(
        i, weights.subspan(tile.first_elem * WeightBytesPerElem(impl.tiles.layout()),
                           impl.tiles.WeightBytes(tile)));
    if (!status.ok()) {
      std::lock_guard lock(impl.mutex);
      impl.failure = Annotate(status, fmt::format("step {}: updating layer '{}'", impl.step.step,
                                                  impl.store->inventory().layers()[layer].name));
      return impl.failure;
    }
  }
  {
    std::lock_guard lock(impl.mutex);
    impl.stats.io_wait_s += impl.tile_wait_s;
    impl.stats.update_s += stopwatch.Seconds() - impl.tile_wait_s;
    impl.stats.updated_elems += impl.tiles.layer_elems(layer);
  }
  impl.staged->EndLayer(layer);
  impl.due[layer].store(false, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::UpdateTile(int tile, std::span<std::byte> weights) {
  const Tile& spec = tiles.tiles()[tile];
  const Stopwatch stopwatch;
  StagingBuffer buffer;
  if (staged->Needs(tile)) {
    const ActivityScope scope(Activity::kReadState);
    FOREBAY_ASSIGN_OR_RETURN(buffer, staged->Await(tile));
  }
  {
    // Memory that stays in place may still be on its way to the disk from the step before.
    const ActivityScope scope(Activity::kWrite);
    FOREBAY_RETURN_IF_ERROR(writes->AwaitWeights(tile));
    FOREBAY_RETURN_IF_ERROR(writes->AwaitState(tile));
  }
  tile_wait_s += stopwatch.Seconds();

  const std::span<std::byte> state =
      staged->StateIsRead(tile) ? buffer.state.first(tiles.StateBytes(spec)) : HostState(tile);
  TileRun whole = WholeRun(spec, weights, state);
  whole.gradient =
      staged->GradientIsRead(tile) ? buffer.gradient.data() : gradients->HostTile(tile);
  whole.gradient_dtype = options.gradient_dtype;
  FOREBAY_RETURN_IF_ERROR(RunKernel(whole, tile, weights, state));
  state_deferred[tile] = !WritesState(tile);
  if (!state_deferred[tile]) writes->StartState(tile, state, step.step);
  weights_deferred[tile] = !WritesWeights(spec);
  if (!weights_deferred[tile]) writes->StartWeights(tile, weights, step.step);
  if (staged->Needs(tile)) staged->Done();
  return absl::OkStatus();
}

// As UpdateTile, of what is not in the swapper's window, on a thread of the optimizer.
absl::Status OffloadedOptimizer::Impl::UpdateBeside(int tile, const StagingBuffer& buffer,
                                                    std::span<const std::byte> gradient) {
  const Stopwatch stopwatch;
  const Tile& spec = tiles.tiles()[tile];
  const std::span<std::byte> weights =
      staged->WeightsAreRead(tile)
          ? buffer.weights.first(static_cast<size_t>(tiles.WeightBytes(spec)))
          : resident_weights[static_cast<size_t>(spec.layer)].subspan(
                static_cast<size_t>(spec.first_elem * WeightBytesPerElem(tiles.layout())),
                static_cast<size_t>(tiles.WeightBytes(spec)));
  const auto state = staged->StateIsRead(tile)
                         ? buffer.state.first(static_cast<size_t>(tiles.StateBytes(spec)))
                         : HostState(tile);
  TileRun whole = WholeRun(spec, weights, state);
  whole.gradient = gradient.data();
  whole.gradient_dtype = options.gradient_dtype;
  const absl::Status status = RunKernel(whole, tile, weights, state);
  if (!status.ok()) {
    return Annotate(status, fmt::format("step {}: updating layer '{}'", step.step,
                                        store->inventory().layers()[spec.layer].name));
  }
  writes->StartState(tile, state, step.step);
  writes->StartWeights(tile, weights, step.step);
  const std::lock_guard lock(mutex);
  stats.update_s += stopwatch.Seconds();
  stats.updated_elems += spec.num_elems;
  return absl::OkStatus();
}

// Verifies what was read, where it was read, updates, and seals what will be written.
absl::Status OffloadedOptimizer::Impl::RunKernel(const TileRun& whole, int tile,
                                                 std::span<std::byte> weights,
                                                 std::span<std::byte> state) {
  const Tile& spec = tiles.tiles()[tile];
  const bool is_read = staged->StateIsRead(tile);
  const bool gradient_is_read = staged->GradientIsRead(tile);
  const bool weights_are_read = staged->WeightsAreRead(tile);
  const std::span<const std::byte> gradient(
      static_cast<const std::byte*>(whole.gradient),
      static_cast<size_t>(spec.num_elems * SizeOf(options.gradient_dtype)));
  const bool writes_weights = WritesWeights(spec);
  const bool writes_state = WritesState(tile);
  const TraceScope trace("update", {.layer = spec.layer, .tile = tile});
  std::mutex damage_mutex;
  absl::Status damage;
  pool.ParallelFor(NumSealParts(spec), [&](int64_t part) {
    const TraceScope trace_part("part of an update", {.layer = spec.layer, .tile = tile});
    absl::Status intact;
    if (is_read) intact = store->VerifyStatePart(tile, part, state);
    if (weights_are_read) intact.Update(store->VerifyWeightsPart(tile, part, weights));
    if (gradient_is_read) intact.Update(gradients->VerifyPart(tile, part, gradient));
    if (!intact.ok()) {
      const std::lock_guard lock(damage_mutex);
      damage.Update(intact);
      return;  // nothing of this tile will be written
    }
    UpdatePart(whole, spec, part);
    if (writes_weights) store->SealWeights(tile, part, weights);
    if (writes_state) store->SealState(tile, part, state);
  });
  return damage;
}

TileRun OffloadedOptimizer::Impl::WholeRun(const Tile& tile, std::span<std::byte> weights,
                                           std::span<std::byte> state) const {
  TileRun run = RunOf(tiles, tile, weights, state);
  if (!options.first_elems.empty()) run.first_elem += options.first_elems[tile.layer];
  return run;
}

void OffloadedOptimizer::Impl::UpdatePart(const TileRun& whole, const Tile& tile, int64_t part) {
  const std::span<const GroupRun> runs = tensors->RunsOf(tile.layer);
  // In the layer's flat vector.
  const int64_t begin = tile.first_elem + part * kTaskElems;
  const int64_t end = std::min(begin + kTaskElems, tile.first_elem + tile.num_elems);
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](int64_t elem, const GroupRun& r) { return elem < r.end_elem; });
  for (int64_t first = begin; first < end; ++run) {
    const int64_t run_end = std::min(end, run->end_elem);
    if (!tensors->IsLeftAlone(*run)) {
      TileRun part_of_run = PartOf(whole, first - tile.first_elem, run_end - first);
      part_of_run.lr_scale = tensors->GroupOf(*run).lr_scale;
      part_of_run.weight_decay = tensors->GroupOf(*run).weight_decay;
      arithmetic().Update(tensors->ScalarsOf(step, *run), part_of_run);
    }
    first = run_end;
  }
}

absl::Status OffloadedOptimizer::WriteDeferred(int layer, std::span<std::byte> weights) {
  Impl& impl = *impl_;
  FOREBAY_RETURN_IF_ERROR(impl.Failure());
  FOREBAY_CHECK(!UpdateIsDue(layer));
  for (int i = impl.tiles.first_tile(layer); i < impl.tiles.first_tile(layer + 1); ++i) {
    if (!impl.weights_deferred[i]) continue;
    const Tile& tile = impl.tiles.tiles()[i];
    const auto of_tile = weights.subspan(tile.first_elem * WeightBytesPerElem(impl.tiles.layout()),
                                         impl.tiles.WeightBytes(tile));
    impl.pool.ParallelFor(NumSealParts(tile),
                          [&](int64_t part) { impl.store->SealWeights(i, part, of_tile); });
    FOREBAY_RETURN_IF_ERROR(impl.writes->AwaitWeights(i));
    impl.writes->StartWeights(i, of_tile, impl.step.step);
    impl.weights_deferred[i] = false;
  }
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::WriteDeferredState() {
  Impl& impl = *impl_;
  FOREBAY_RETURN_IF_ERROR(impl.Failure());
  FOREBAY_CHECK(!impl.AnyIsDue());
  for (int i = 0; i < impl.tiles.num_streamed_tiles(); ++i) {
    if (!impl.state_deferred[i]) continue;
    const std::span<std::byte> state = impl.HostState(i);
    impl.pool.ParallelFor(NumSealParts(impl.tiles.tiles()[i]),
                          [&](int64_t part) { impl.store->SealState(i, part, state); });
    FOREBAY_RETURN_IF_ERROR(impl.writes->AwaitState(i));
    impl.writes->StartState(i, state, impl.step.step);
    impl.state_deferred[i] = false;
  }
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::AwaitWriteBack(int layer) {
  absl::Status first_error;
  for (int i = impl_->tiles.first_tile(layer); i < impl_->tiles.first_tile(layer + 1); ++i) {
    first_error.Update(impl_->writes->AwaitWeights(i));
  }
  return first_error;
}

absl::Status OffloadedOptimizer::AwaitAllWrites() {
  absl::Status status = impl_->writes->AwaitAll();
  status.Update(impl_->Failure());
  return status;
}

OptimizerStats OffloadedOptimizer::stats() const {
  double ring_wait_s = impl_->speculation != nullptr ? impl_->speculation->wait_s() : 0;
  if (impl_->delays != nullptr) ring_wait_s += impl_->delays->wait_s();
  std::lock_guard lock(impl_->mutex);
  OptimizerStats stats = impl_->stats;
  stats.hand_wait_s += ring_wait_s;
  return stats;
}

}  // namespace forebay
