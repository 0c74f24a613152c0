// What becomes of a tile: by the swapper's thread as its layer comes in, or by the optimizer's own.
#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/activity.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/device/stream_trace.h"
#include "forebay/optimizer/kernels/update_cuda.h"
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

bool OffloadedOptimizer::Impl::OnlyIsDue(int layer) const {
  for (size_t other = 0; other < due.size(); ++other) {
    if (static_cast<int>(other) != layer && due[other].load(std::memory_order_relaxed))
      return false;
  }
  return true;
}

bool OffloadedOptimizer::AnyUpdateIsDue() const {
  return impl_->AnyIsDue() || impl_->delayed_is_pending;
}

bool OffloadedOptimizer::UpdateIsDue(int layer) const {
  return impl_->due[layer].load(std::memory_order_acquire);
}

absl::Status OffloadedOptimizer::UpdateLayer(int layer, std::span<std::byte> weights) {
  const TileMap& tiles = impl_->tiles;
  FOREBAY_CHECK(static_cast<int64_t>(weights.size()) ==
                tiles.layer_elems(layer) * WeightBytesPerElem(tiles.layout()));
  return UpdateTiles(layer, tiles.first_tile(layer), tiles.first_tile(layer + 1), weights);
}

absl::Status OffloadedOptimizer::UpdateTiles(int layer, int first_tile, int end_tile,
                                             std::span<std::byte> weights) {
  Impl& impl = *impl_;
  FOREBAY_RETURN_IF_ERROR(impl.Failure());
  FOREBAY_CHECK(UpdateIsDue(layer));
  const Stopwatch stopwatch;
  impl.tile_wait_s = 0;
  absl::Status status;
  int64_t num_elems = 0;
  for (int i = first_tile; i < end_tile; ++i) {
    const Tile& tile = impl.tiles.tiles()[i];
    status = impl.UpdateTile(i, weights.subspan(num_elems * WeightBytesPerElem(impl.tiles.layout()),
                                                impl.tiles.WeightBytes(tile)));
    if (!status.ok()) break;
    num_elems += tile.num_elems;
  }
  status = impl.EndOnDevice(status);
  if (!status.ok()) {
    std::lock_guard lock(impl.mutex);
    impl.failure = Annotate(status, fmt::format("step {}: updating layer '{}'", impl.step.step,
                                                impl.store->inventory().layers()[layer].name));
    return impl.failure;
  }
  {
    std::lock_guard lock(impl.mutex);
    impl.stats.io_wait_s += impl.tile_wait_s;
    impl.stats.update_s += stopwatch.Seconds() - impl.tile_wait_s;
    impl.stats.updated_elems += num_elems;
  }
  if (end_tile == impl.tiles.first_tile(layer + 1)) impl.EndUpdateOf(layer);
  return absl::OkStatus();
}

void OffloadedOptimizer::Impl::EndUpdateOf(int layer) {
  staged->EndLayer(layer);
  // Its thread has what is staged from here on: this one does not touch it while nothing is due.
  if (expects_speculation.load(std::memory_order_relaxed) && OnlyIsDue(layer)) {
    speculation->ReadEarly();
  }
  due[layer].store(false, std::memory_order_release);
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

  const std::byte* const gradient =
      staged->GradientIsRead(tile) ? buffer.gradient.data() : gradients->HostTile(tile);
  FOREBAY_RETURN_IF_ERROR(
      UpdateAndWrite(tile, {weights, StateIn(buffer, tile), {gradient, GradientBytes(spec)}}));
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
  const absl::Status status = EndOnDevice(
      UpdateAndWrite(tile, {weights, StateIn(buffer, tile), gradient.first(GradientBytes(spec))}));
  if (!status.ok()) {
    return Annotate(status, fmt::format("step {}: updating layer '{}'", step.step,
                                        store->inventory().layers()[spec.layer].name));
  }
  const std::lock_guard lock(mutex);
  stats.update_s += stopwatch.Seconds();
  stats.updated_elems += spec.num_elems;
  return absl::OkStatus();
}

std::span<std::byte> OffloadedOptimizer::Impl::StateIn(const StagingBuffer& buffer, int tile) {
  if (placement.state[tile] == Tier::kDevice) return {};
  return staged->StateIsRead(tile) ? buffer.state.first(tiles.StateBytes(tiles.tiles()[tile]))
                                   : HostState(tile);
}

absl::Status OffloadedOptimizer::Impl::UpdateAndWrite(int tile, const TileMemory& memory) {
  const TraceScope trace("update", {.layer = tiles.tiles()[tile].layer, .tile = tile});
  if (placement.state[tile] == Tier::kDevice) return UpdateOnDevice(tile, memory);
  FOREBAY_RETURN_IF_ERROR(UpdateOnHost(tile, memory));
  StartWrites(tile, memory);
  return absl::OkStatus();
}

void OffloadedOptimizer::Impl::StartWrites(int tile, const TileMemory& memory) {
  const Tile& spec = tiles.tiles()[tile];
  state_deferred[tile] = !WritesState(tile);
  if (!state_deferred[tile]) writes->StartState(tile, memory.state, step.step);
  weights_deferred[tile] = !WritesWeights(spec);
  if (!weights_deferred[tile]) writes->StartWeights(tile, memory.weights, step.step);
}

// ---- A tile ------------------------------------------------------------------------------------

// The first error of any part; nothing of the tile will be written then.
absl::Status OffloadedOptimizer::Impl::ForEachPart(
    int tile, absl::FunctionRef<absl::Status(int64_t part)> task) {
  const Tile& spec = tiles.tiles()[tile];
  std::mutex first_mutex;
  absl::Status first;
  pool.ParallelFor(NumSealParts(spec), [&](int64_t part) {
    const TraceScope trace("part of an update", {.layer = spec.layer, .tile = tile});
    const absl::Status status = task(part);
    if (status.ok()) return;
    const std::lock_guard lock(first_mutex);
    first.Update(status);
  });
  return first;
}

absl::Status OffloadedOptimizer::Impl::VerifyPart(int tile, int64_t part,
                                                  const TileMemory& memory) const {
  absl::Status intact;
  if (staged->StateIsRead(tile)) intact = store->VerifyStatePart(tile, part, memory.state);
  if (staged->WeightsAreRead(tile)) {
    intact.Update(store->VerifyWeightsPart(tile, part, memory.weights));
  }
  if (staged->GradientIsRead(tile)) {
    intact.Update(gradients->VerifyPart(tile, part, memory.gradient));
  }
  return intact;
}

void OffloadedOptimizer::Impl::SealPart(int tile, int64_t part, const TileMemory& memory) {
  if (WritesWeights(tiles.tiles()[tile])) store->SealWeights(tile, part, memory.weights);
  if (WritesState(tile)) store->SealState(tile, part, memory.state);
}

// Verifies what was read, where it was read, updates, and seals what will be written.
absl::Status OffloadedOptimizer::Impl::UpdateOnHost(int tile, const TileMemory& memory) {
  const Tile& spec = tiles.tiles()[tile];
  TileRun whole = WholeRun(spec, memory.weights, memory.state);
  whole.gradient = memory.gradient.data();
  return ForEachPart(tile, [&](int64_t part) {
    FOREBAY_RETURN_IF_ERROR(VerifyPart(tile, part, memory));
    const int64_t begin_elem = part * kTaskElems;
    const absl::Status status =
        ForEachRun(whole, spec, begin_elem, std::min(begin_elem + kTaskElems, spec.num_elems),
                   [this](const UpdateScalars& scalars, const TileRun& run) {
                     arithmetic().Update(scalars, run);
                     return absl::OkStatus();
                   });
    SealPart(tile, part, memory);
    return status;
  });
}

// The same, with the state where it lives. The tile before is done with meanwhile, so that its
// copies are made beside this update.
absl::Status OffloadedOptimizer::Impl::UpdateOnDevice(int tile, const TileMemory& memory) {
  if (staged->Needs(tile)) {
    FOREBAY_RETURN_IF_ERROR(
        ForEachPart(tile, [&](int64_t part) { return VerifyPart(tile, part, memory); }));
  }
  OnDevice begun = {tile, memory};
  FOREBAY_RETURN_IF_ERROR(ComputeOnDevice(begun));
  FOREBAY_RETURN_IF_ERROR(AwaitOnDevice());
  on_device = begun;
  // Other tiles are read into its buffers from now on.
  return staged->Needs(tile) ? device_state->AwaitInputs() : absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::ComputeOnDevice(OnDevice& begun) {
  TileMemory& memory = begun.memory;
  const Tile& spec = tiles.tiles()[begun.tile];
  FOREBAY_ASSIGN_OR_RETURN(const DeviceState::Planes planes,
                           device_state->Begin(begun.tile, memory.weights, memory.gradient));
  TileRun whole = WholeRun(spec, planes.weights, planes.state);
  whole.gradient = planes.gradient.data();
  const bool on_host = options.device->kind() == DeviceKind::kHost;
  const auto update = [&](void* native_stream) {
    return ForEachRun(whole, spec, 0, spec.num_elems,
                      [&](const UpdateScalars& scalars, const TileRun& run) {
                        if (!on_host) {
                          return UpdateRunCuda(options.rule, scalars, run, native_stream);
                        }
                        UpdateRun(options.rule, scalars, run);
                        return absl::OkStatus();
                      });
  };
  {
    const StreamScope scope(device_state->stream(), "update",
                            {.layer = spec.layer, .tile = begun.tile});
    FOREBAY_RETURN_IF_ERROR(device_state->stream().Launch(update));
  }
  FOREBAY_ASSIGN_OR_RETURN(memory.state,
                           device_state->End(begun.tile, memory.weights, WritesState(begun.tile)));
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::AwaitOnDevice() {
  const auto [tile, memory] = std::exchange(on_device, {});
  if (tile < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(device_state->Await());
  if (WritesState(tile) || WritesWeights(tiles.tiles()[tile])) {
    FOREBAY_RETURN_IF_ERROR(ForEachPart(tile, [&, tile = tile, &memory = memory](int64_t part) {
      SealPart(tile, part, memory);
      return absl::OkStatus();
    }));
  }
  StartWrites(tile, memory);
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::EndOnDevice(absl::Status status) {
  if (status.ok()) status = AwaitOnDevice();
  if (status.ok() || device_state == nullptr) return status;
  // Copies that were enqueued still read and write the caller's memory.
  device_state->AwaitAll();
  on_device = {};
  return status;
}

// Without its gradient's address.
TileRun OffloadedOptimizer::Impl::WholeRun(const Tile& tile, std::span<std::byte> weights,
                                           std::span<std::byte> state) const {
  TileRun run = RunOf(tiles, tile, weights, state);
  run.gradient_dtype = options.gradient_dtype;
  if (!options.first_elems.empty()) run.first_elem += options.first_elems[tile.layer];
  return run;
}

absl::Status OffloadedOptimizer::Impl::ForEachRun(
    const TileRun& whole, const Tile& tile, int64_t begin_elem, int64_t end_elem,
    absl::FunctionRef<absl::Status(const UpdateScalars& scalars, const TileRun& run)> update) {
  const std::span<const GroupRun> runs = tensors->RunsOf(tile.layer);
  // In the layer's flat vector.
  const int64_t begin = tile.first_elem + begin_elem;
  const int64_t end = tile.first_elem + end_elem;
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](int64_t elem, const GroupRun& r) { return elem < r.end_elem; });
  for (int64_t first = begin; first < end; ++run) {
    const int64_t run_end = std::min(end, run->end_elem);
    if (!tensors->IsLeftAlone(*run)) {
      TileRun part_of_run = PartOf(whole, first - tile.first_elem, run_end - first);
      part_of_run.lr_scale = tensors->GroupOf(*run).lr_scale;
      part_of_run.weight_decay = tensors->GroupOf(*run).weight_decay;
      FOREBAY_RETURN_IF_ERROR(update(tensors->ScalarsOf(step, *run), part_of_run));
    }
    first = run_end;
  }
  return absl::OkStatus();
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

absl::Status OffloadedOptimizer::WriteDeferredState(absl::FunctionRef<void()> meanwhile) {
  Impl& impl = *impl_;
  FOREBAY_RETURN_IF_ERROR(impl.Failure());
  FOREBAY_CHECK(!impl.AnyIsDue());
  // A tile comes from the device while the one before is sealed.
  int before = -1;
  std::span<std::byte> state_before;
  for (int i = 0; i < impl.tiles.num_streamed_tiles(); ++i) {
    if (!impl.state_deferred[i]) continue;
    std::span<std::byte> state;
    if (impl.placement.state[i] == Tier::kDevice) {
      FOREBAY_ASSIGN_OR_RETURN(state, impl.device_state->CopyBack(i));
    } else {
      state = impl.HostState(i);
    }
    FOREBAY_RETURN_IF_ERROR(impl.WriteState(before, state_before));
    before = i;
    state_before = state;
    meanwhile();
  }
  return impl.WriteState(before, state_before);
}

absl::Status OffloadedOptimizer::Impl::WriteState(int tile, std::span<std::byte> state) {
  if (tile < 0) return absl::OkStatus();
  if (placement.state[tile] == Tier::kDevice) {
    FOREBAY_RETURN_IF_ERROR(device_state->AwaitCopyBack(tile));
  }
  pool.ParallelFor(NumSealParts(tiles.tiles()[tile]),
                   [&](int64_t part) { store->SealState(tile, part, state); });
  FOREBAY_RETURN_IF_ERROR(writes->AwaitState(tile));
  writes->StartState(tile, state, step.step);
  state_deferred[tile] = false;
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::AwaitWriteBack(int layer) {
  return AwaitWriteBackOfTiles(impl_->tiles.first_tile(layer), impl_->tiles.first_tile(layer + 1));
}

absl::Status OffloadedOptimizer::AwaitWriteBackOfTiles(int first_tile, int end_tile) {
  absl::Status first_error;
  for (int tile = first_tile; tile < end_tile; ++tile) {
    first_error.Update(impl_->writes->AwaitWeights(tile));
  }
  return first_error;
}

bool OffloadedOptimizer::ReadFurther() {
  // Else what is staged is another thread's.
  return impl_->AnyIsDue() && impl_->staged->ReadFurther();
}

absl::Status OffloadedOptimizer::AwaitAllWrites(absl::FunctionRef<void()> meanwhile) {
  const bool reads_early = impl_->expects_speculation.load(std::memory_order_relaxed);
  if (reads_early) impl_->speculation->PauseReading();
  absl::Status status = impl_->writes->AwaitAll(meanwhile);
  if (reads_early && !impl_->AnyIsDue()) impl_->speculation->ReadEarly();
  status.Update(impl_->Failure());
  return status;
}

OptimizerStats OffloadedOptimizer::stats() const {
  const double ring_wait_s = impl_->speculation != nullptr ? impl_->speculation->wait_s() : 0;
  std::lock_guard lock(impl_->mutex);
  OptimizerStats stats = impl_->stats;
  stats.hand_wait_s += ring_wait_s;
  return stats;
}

}  // namespace forebay
