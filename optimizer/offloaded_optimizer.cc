#include "forebay/optimizer/offloaded_optimizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/optimizer/speculative_updates.h"
#include "forebay/optimizer/staged_tiles.h"
#include "forebay/optimizer/tile_run.h"
#include "forebay/optimizer/tile_writes.h"
#include "forebay/swap/tile_seals.h"
#include "forebay/swap/transfer_buffer.h"

namespace forebay {
namespace {

// Elements per task of an update: what has a checksum of its own, so that a task verifies, updates
// and seals it while it is in the cache. Updates are elementwise, or of whole blocks, so the cut
// does not show in the result.
constexpr int64_t kTaskElems = kSealElems;
static_assert(kTaskElems % kMomentBlockElems == 0 && kTensorAlignElems % kMomentBlockElems == 0);

bool AnyOnNvme(const std::vector<Tier>& tiers) {
  return std::find(tiers.begin(), tiers.end(), Tier::kNvme) != tiers.end();
}

}  // namespace

struct OffloadedOptimizer::Impl {
  Impl(const OffloadedOptimizerOptions& options_in, const Placement& placement_in,
       TensorStore* store_in);

  absl::Status MakeStaging(MemoryBudget* budget);
  absl::Status LoadHostState(MemoryBudget* budget);
  absl::Status MakeSpeculation();
  absl::Status EndSpeculation(bool& complete);
  absl::Status UpdateTile(int tile, std::span<std::byte> weights);
  absl::Status UpdateSpeculatively(int tile, const StagingBuffer& buffer,
                                   std::span<const std::byte> gradient);
  absl::Status RunKernel(const TileRun& whole, int tile, std::span<std::byte> weights,
                         std::span<std::byte> state);
  std::span<std::byte> HostState(int tile) {
    return host_state.bytes().subspan(host_state_offset_bytes[tile],
                                      tiles.StateBytes(tiles.tiles()[tile]));
  }
  // Whether the update in progress writes what it makes of a tile.
  bool WritesWeights(const Tile& tile) const {
    return resident == ResidentWrites::kNow || placement.weights[tile.layer] == Tier::kNvme;
  }
  bool WritesState(int tile) const {
    return resident == ResidentWrites::kNow || placement.state[tile] == Tier::kNvme;
  }
  void UpdatePart(const TileRun& whole, const Tile& tile, int64_t part);
  const TileArithmetic& arithmetic() const {
    return options.arithmetic != nullptr ? *options.arithmetic : rule;
  }
  bool AnyIsDue() const;
  absl::Status Failure() const {
    std::lock_guard lock(mutex);
    return failure;
  }

  const OffloadedOptimizerOptions options;
  const RuleArithmetic rule;
  const Placement placement;
  TensorStore* const store;
  const TileMap& tiles;
  ParameterGroups groups;
  std::vector<std::vector<GroupRun>> group_runs;  // by layer
  ThreadPool pool;

  // Buffers before the transfers that use them, so that these end first.
  TransferBuffer staging_memory;
  std::vector<StagingBuffer> staging;
  TransferBuffer host_state;
  std::vector<int64_t> host_state_offset_bytes;  // by tile; meaningless for tiles on NVMe
  std::unique_ptr<TileWrites> writes;
  std::unique_ptr<HeldGradients> gradients;
  std::vector<std::atomic<bool>> due;  // by layer
  std::unique_ptr<StagedTiles> staged;
  std::vector<int> due_tiles;                       // of the layers that are not speculative
  std::unique_ptr<SpeculativeUpdates> speculation;  // nullptr: no layer is speculative

  // Training thread.
  bool speculates = false;  // since BeginSpeculation, until BeginUpdate or AbandonStep
  double most_squares = 0;  // of the norm with which it goes on
  double handed_squares = 0;
  bool speculation_is_complete = true;             // of FinishBackward
  bool backward_finished = false;                  // training thread
  int first_nonfinite_layer = -1;                  // of what was handed over so far
  UpdateScalars step;                              // of the updates that are due
  ResidentWrites resident = ResidentWrites::kNow;  // the same
  // By tile: whether what is in RAM is newer than what was written. Of whoever updates or writes.
  std::vector<bool> weights_deferred;
  std::vector<bool> state_deferred;
  double tile_wait_s = 0;  // of the layer being updated

  mutable std::mutex mutex;
  absl::Status failure;  // mutex: of an update; no further one is taken
  OptimizerStats stats;  // mutex
};

OffloadedOptimizer::Impl::Impl(const OffloadedOptimizerOptions& options_in,
                               const Placement& placement_in, TensorStore* store_in)
    : options(options_in),
      rule(options_in.rule),
      placement(placement_in),
      store(store_in),
      tiles(store_in->tiles()),
      groups(options_in.groups.groups.empty()
                 ? DecayGroups(store_in->inventory(), options_in.weight_decay)
                 : options_in.groups),
      pool(options_in.num_threads, "optimizer"),
      host_state_offset_bytes(store_in->tiles().num_tiles()),
      due(store_in->inventory().num_layers()),
      weights_deferred(store_in->tiles().num_tiles()),
      state_deferred(store_in->tiles().num_tiles()) {
  for (int layer = 0; layer < store->inventory().num_layers(); ++layer) {
    group_runs.push_back(GroupRunsOf(store->inventory(), layer, groups.of_tensor));
  }
}

// ---- Creation ----------------------------------------------------------------------------------

int64_t OffloadedOptimizer::StagingBytes(const OffloadedOptimizerOptions& options,
                                         const TileMap& tiles) {
  const int64_t weight_bytes = options.may_speculate ? tiles.max_weight_bytes() : 0;
  return options.num_staging_tiles *
             (tiles.max_state_bytes() + tiles.max_tile_elems() * SizeOf(options.gradient_dtype) +
              weight_bytes) +
         GradientSeals::TableBytes(tiles);
}

StripeBytes OffloadedOptimizer::GradientAreaBytes(const OffloadedOptimizerOptions& options,
                                                  const Placement& placement,
                                                  const TileMap& tiles) {
  return PlaceGradients(placement, tiles, SizeOf(options.gradient_dtype), options.gradient_area)
      .area_bytes;
}

absl::StatusOr<std::unique_ptr<OffloadedOptimizer>> OffloadedOptimizer::Create(
    const OffloadedOptimizerOptions& options, const Placement& placement, TensorStore* store,
    MemoryBudget* budget) {
  FOREBAY_CHECK(options.num_staging_tiles >= 2);
  FOREBAY_CHECK(store->tiles().moment_set() == MomentsOf(options.rule));
  FOREBAY_CHECK(static_cast<int>(placement.state.size()) == store->tiles().num_tiles());
  auto impl = std::make_unique<Impl>(options, placement, store);
  FOREBAY_RETURN_IF_ERROR(impl->MakeStaging(budget));
  FOREBAY_RETURN_IF_ERROR(impl->LoadHostState(budget));
  // The staging buffers of gradients serve both ways: spilling ends before the first read.
  std::vector<std::span<std::byte>> gradient_staging;
  for (const StagingBuffer& buffer : impl->staging) gradient_staging.push_back(buffer.gradient);
  FOREBAY_ASSIGN_OR_RETURN(
      impl->gradients,
      HeldGradients::Create(options.gradient_dtype, options.gradient_area, impl->placement,
                            &impl->arithmetic(), store, budget, std::move(gradient_staging)));
  impl->writes = std::make_unique<TileWrites>(store);
  impl->staged = std::make_unique<StagedTiles>(impl->staging, impl->placement, store,
                                               impl->gradients.get(), impl->writes.get());
  FOREBAY_RETURN_IF_ERROR(impl->MakeSpeculation());
  return std::unique_ptr<OffloadedOptimizer>(new OffloadedOptimizer(std::move(impl)));
}

OffloadedOptimizer::OffloadedOptimizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OffloadedOptimizer::~OffloadedOptimizer() = default;

absl::Status OffloadedOptimizer::Impl::MakeStaging(MemoryBudget* budget) {
  const int64_t state_bytes = AnyOnNvme(placement.state) ? tiles.max_state_bytes() : 0;
  const int64_t gradient_bytes =
      AnyOnNvme(placement.gradients) ? tiles.max_tile_elems() * SizeOf(options.gradient_dtype) : 0;
  const int64_t weight_bytes = placement.AnySpeculative() ? tiles.max_weight_bytes() : 0;
  const int64_t buffer_bytes = state_bytes + gradient_bytes + weight_bytes;
  staging.resize(options.num_staging_tiles);
  if (buffer_bytes == 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(
      staging_memory,
      TransferBuffer::Create(store, budget, "optimizer staging",
                             options.num_staging_tiles * buffer_bytes, buffer_bytes));
  for (int i = 0; i < options.num_staging_tiles; ++i) {
    const auto buffer = staging_memory.bytes().subspan(i * buffer_bytes, buffer_bytes);
    staging[i] = {buffer.first(state_bytes), buffer.subspan(state_bytes, gradient_bytes),
                  buffer.last(weight_bytes)};
  }
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::MakeSpeculation() {
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    const int layer = tiles.tiles()[i].layer;
    if (!placement.IsSpeculative(layer)) {
      due_tiles.push_back(i);
      continue;
    }
    FOREBAY_CHECK(placement.gradients[layer] == Tier::kNvme);
    FOREBAY_CHECK(placement.weights[layer] == Tier::kNvme);
    FOREBAY_CHECK(placement.state[i] == Tier::kNvme || tiles.StateBytes(tiles.tiles()[i]) == 0);
  }
  if (!placement.AnySpeculative()) return absl::OkStatus();
  // Tiles that are written over until a commit, and buffers that spilled gradients would need too.
  FOREBAY_CHECK(store->num_slots() > 1 && options.gradient_area == GradientArea::kSpilled);
  std::vector<int> order;
  for (const int layer : options.hand_over_order) {
    FOREBAY_CHECK(!placement.IsSpilled(layer));
    if (!placement.IsSpeculative(layer)) continue;
    for (int i = tiles.first_tile(layer); i < tiles.first_tile(layer + 1); ++i) order.push_back(i);
  }
  FOREBAY_CHECK(static_cast<int>(order.size() + due_tiles.size()) == tiles.num_tiles());
  std::vector<std::span<std::byte>> buffers;
  for (const StagingBuffer& buffer : staging) buffers.push_back(buffer.gradient);
  FOREBAY_ASSIGN_OR_RETURN(
      speculation, SpeculativeUpdates::Create(std::move(order), std::move(buffers), staged.get(),
                                              [this](int tile, const StagingBuffer& buffer,
                                                     std::span<const std::byte> gradient) {
                                                return UpdateSpeculatively(tile, buffer, gradient);
                                              }));
  gradients->SetSink(speculation.get());
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::LoadHostState(MemoryBudget* budget) {
  int64_t size_bytes = 0;
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    host_state_offset_bytes[i] = size_bytes;
    size_bytes += tiles.StateBytes(tiles.tiles()[i]);
  }
  if (size_bytes == 0) return absl::OkStatus();
  // Tiles differ in size, so that some lie across two pieces: one in a GiB.
  FOREBAY_ASSIGN_OR_RETURN(
      host_state,
      TransferBuffer::Create(store, budget, "optimizer state in RAM", size_bytes, kIoAlignBytes));
  std::array<IoOp, 8> reads;
  absl::Status status;
  for (int i = 0; i < tiles.num_tiles() && status.ok(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    IoOp& read = reads[i % reads.size()];
    status.Update(store->engine().Wait(read));
    store->StartReadState(i, HostState(i), IoClass::kDemandRead, read);
  }
  for (IoOp& read : reads) status.Update(store->engine().Wait(read));
  for (int i = 0; i < tiles.num_tiles() && status.ok(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    status = store->VerifyState(i, HostState(i));
  }
  if (status.ok()) return status;
  return Annotate(status, "optimizer: loading the state that is kept in memory failed");
}

// ---- Gradients ---------------------------------------------------------------------------------

absl::Status OffloadedOptimizer::Hand(int layer, std::span<const float> gradient,
                                      ThreadPool& pool) {
  FOREBAY_CHECK(!impl_->backward_finished && !impl_->AnyIsDue());
  FOREBAY_RETURN_IF_ERROR(impl_->gradients->Hand(layer, gradient, pool));
  const double sum_of_squares = impl_->gradients->sum_of_squares(layer);
  const bool is_finite = std::isfinite(sum_of_squares);
  if (!is_finite && impl_->first_nonfinite_layer < 0) impl_->first_nonfinite_layer = layer;
  impl_->handed_squares += sum_of_squares;
  if (impl_->speculates && !(impl_->handed_squares <= impl_->most_squares)) {
    impl_->speculation->Decline();
  }
  return absl::OkStatus();
}

// With all of it written, so that whoever reads a layer next finds what was made of it.
absl::Status OffloadedOptimizer::Impl::EndSpeculation(bool& complete) {
  const Stopwatch stopwatch;
  absl::Status status = speculation->End(complete);
  status.Update(writes->AwaitAll());
  const std::lock_guard lock(mutex);
  stats.hand_wait_s += stopwatch.Seconds();
  return status;
}

bool OffloadedOptimizer::speculates() const {
  return impl_->speculation != nullptr;
}

void OffloadedOptimizer::BeginSpeculation(const UpdateScalars& scalars, double most_norm) {
  FOREBAY_CHECK(impl_->speculation != nullptr && !impl_->speculates);
  FOREBAY_CHECK(!impl_->backward_finished && !impl_->AnyIsDue());
  impl_->step = scalars;
  impl_->resident = ResidentWrites::kNow;
  impl_->speculates = true;
  impl_->most_squares = most_norm * most_norm;
  impl_->speculation->Begin();
}

absl::StatusOr<GradientStats> OffloadedOptimizer::FinishBackward() {
  FOREBAY_RETURN_IF_ERROR(impl_->gradients->Finish());
  GradientStats stats;
  double sum = 0;
  for (int layer = 0; layer < impl_->store->inventory().num_layers(); ++layer) {
    sum += impl_->gradients->sum_of_squares(layer);
  }
  stats.norm = std::sqrt(sum);
  stats.first_nonfinite_layer = std::exchange(impl_->first_nonfinite_layer, -1);
  impl_->handed_squares = 0;
  if (impl_->speculation != nullptr) {
    stats.speculation_is_complete = false;
    if (impl_->speculates) {
      FOREBAY_RETURN_IF_ERROR(impl_->EndSpeculation(stats.speculation_is_complete));
    }
  }
  impl_->speculation_is_complete = stats.speculation_is_complete;
  impl_->backward_finished = true;
  return stats;
}

absl::Status OffloadedOptimizer::PublishIntent(int64_t step, const Json& trainer) {
  FOREBAY_CHECK(impl_->backward_finished);
  FOREBAY_CHECK(impl_->options.gradient_area == GradientArea::kAll);
  return impl_->store->PublishIntent({step, SizeOf(impl_->options.gradient_dtype), trainer},
                                     impl_->gradients->seals_table());
}

RecoveredGradients OffloadedOptimizer::RecoverGradients(
    const std::function<absl::Status(double)>& progress) {
  FOREBAY_CHECK(!impl_->backward_finished && !impl_->AnyIsDue());
  FOREBAY_CHECK(impl_->options.gradient_area == GradientArea::kAll);
  RecoveredGradients recovered;
  absl::StatusOr<std::optional<StepIntent>> intent =
      impl_->store->FindIntent(impl_->gradients->seals_table());
  recovered.damage = intent.status();
  if (!intent.ok() || !intent->has_value() ||
      (*intent)->gradient_elem_bytes != SizeOf(impl_->options.gradient_dtype)) {
    return recovered;
  }
  recovered.damage = impl_->gradients->Recover(impl_->pool, progress);
  if (!recovered.damage.ok()) return recovered;
  recovered.intent = *std::move(intent);
  impl_->backward_finished = true;
  return recovered;
}

void OffloadedOptimizer::AbandonStep() {
  impl_->gradients->Abandon();
  if (impl_->speculates) {
    impl_->speculation->Drop();
    // A write that failed stays the error of its tile.
    impl_->writes->AwaitAll().IgnoreError();
    impl_->store->DiscardWrites();
    impl_->speculates = false;
  }
  impl_->handed_squares = 0;
  impl_->first_nonfinite_layer = -1;
  impl_->backward_finished = false;
}

void OffloadedOptimizer::BeginUpdate(const UpdateScalars& step, ResidentWrites resident) {
  FOREBAY_CHECK(impl_->backward_finished && !impl_->AnyIsDue());
  impl_->backward_finished = false;
  if (impl_->speculation != nullptr) {
    FOREBAY_CHECK(impl_->speculates && impl_->speculation_is_complete);
    FOREBAY_CHECK(resident == ResidentWrites::kNow);
    FOREBAY_CHECK(step.step == impl_->step.step && step.lr == impl_->step.lr &&
                  step.gradient_scale == impl_->step.gradient_scale);
    impl_->speculates = false;
  }
  impl_->step = step;
  impl_->resident = resident;
  impl_->staged->Begin(impl_->due_tiles);
  // Last: from here on the swapper's thread may update.
  for (size_t layer = 0; layer < impl_->due.size(); ++layer) {
    impl_->due[layer].store(!impl_->placement.IsSpeculative(static_cast<int>(layer)),
                            std::memory_order_release);
  }
}

// ---- Update ------------------------------------------------------------------------------------

bool OffloadedOptimizer::Impl::AnyIsDue() const {
  // Acquire: what the swapper's thread did for a layer happened before its update ceased to be due.
  return std::any_of(due.begin(), due.end(), [](const std::atomic<bool>& layer_is_due) {
    return layer_is_due.load(std::memory_order_acquire);
  });
}

bool OffloadedOptimizer::AnyUpdateIsDue() const {
  return impl_->AnyIsDue();
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
    FOREBAY_ASSIGN_OR_RETURN(buffer, staged->Await(tile));
  }
  // Memory that stays in place may still be on its way to the disk from the step before.
  FOREBAY_RETURN_IF_ERROR(writes->AwaitWeights(tile));
  FOREBAY_RETURN_IF_ERROR(writes->AwaitState(tile));
  tile_wait_s += stopwatch.Seconds();

  const std::span<std::byte> state =
      staged->StateIsRead(tile) ? buffer.state.first(tiles.StateBytes(spec)) : HostState(tile);
  TileRun whole = RunOf(tiles, spec, weights, state);
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

// As UpdateTile, of what is not in the swapper's window, on the thread of the speculation.
absl::Status OffloadedOptimizer::Impl::UpdateSpeculatively(int tile, const StagingBuffer& buffer,
                                                           std::span<const std::byte> gradient) {
  const Stopwatch stopwatch;
  const Tile& spec = tiles.tiles()[tile];
  const auto weights = buffer.weights.first(static_cast<size_t>(tiles.WeightBytes(spec)));
  const auto state = buffer.state.first(static_cast<size_t>(tiles.StateBytes(spec)));
  TileRun whole = RunOf(tiles, spec, weights, state);
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
  std::mutex damage_mutex;
  absl::Status damage;
  pool.ParallelFor(NumSealParts(spec), [&](int64_t part) {
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

void OffloadedOptimizer::Impl::UpdatePart(const TileRun& whole, const Tile& tile, int64_t part) {
  const std::vector<GroupRun>& runs = group_runs[tile.layer];
  // In the layer's flat vector.
  const int64_t begin = tile.first_elem + part * kTaskElems;
  const int64_t end = std::min(begin + kTaskElems, tile.first_elem + tile.num_elems);
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](int64_t elem, const GroupRun& r) { return elem < r.end_elem; });
  for (int64_t first = begin; first < end; ++run) {
    const int64_t run_end = std::min(end, run->end_elem);
    TileRun part_of_run = PartOf(whole, first - tile.first_elem, run_end - first);
    part_of_run.lr_scale = groups.groups[run->group].lr_scale;
    part_of_run.weight_decay = groups.groups[run->group].weight_decay;
    arithmetic().Update(step, part_of_run);
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
  for (int i = 0; i < impl.tiles.num_tiles(); ++i) {
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
  const double ring_wait_s = impl_->speculation != nullptr ? impl_->speculation->wait_s() : 0;
  std::lock_guard lock(impl_->mutex);
  OptimizerStats stats = impl_->stats;
  stats.hand_wait_s += ring_wait_s;
  return stats;
}

}  // namespace forebay
