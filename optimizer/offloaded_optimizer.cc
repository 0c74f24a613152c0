#include "forebay/optimizer/offloaded_optimizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/intent_words.h"
#include "forebay/optimizer/offloaded_optimizer_impl.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/optimizer/update_modes.h"

namespace forebay {
namespace {

bool AnyOnNvme(const std::vector<Tier>& tiers) {
  return std::find(tiers.begin(), tiers.end(), Tier::kNvme) != tiers.end();
}

// The room of each staging buffer.
struct StagingShape {
  int64_t state_bytes = 0, gradient_bytes = 0, weight_bytes = 0, spill_bytes = 0;
  int64_t Total() const { return state_bytes + gradient_bytes + weight_bytes + spill_bytes; }
};

StagingShape StagingShapeOf(const OffloadedOptimizerOptions& options, const Placement& placement,
                            const TileMap& tiles) {
  bool any_spilled = false, any_outside = false;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    any_spilled |= placement.IsSpilled(layer);
    any_outside |= placement.UpdateTimeOf(layer) != UpdateTime::kOnRead &&
                   placement.weights[layer] == Tier::kNvme;
  }
  StagingShape shape;
  if (AnyOnNvme(placement.state)) shape.state_bytes = tiles.max_state_bytes();
  if (any_spilled) {
    shape.gradient_bytes = tiles.max_tile_elems() * SizeOf(options.gradient_dtype);
  }
  if (any_outside) shape.weight_bytes = tiles.max_weight_bytes();
  shape.spill_bytes = (placement.NumGradientSets() - 1) * shape.gradient_bytes;
  return shape;
}

// `latest`: when layers are updated at last.
int64_t StagingBytesOf(const OffloadedOptimizerOptions& options, const StagingShape& shape,
                       UpdateTime latest, const TileMap& tiles) {
  int64_t landing_bytes = 0;
  for (int layer = 0; options.gradient_device != nullptr && layer < tiles.num_streamed_layers();
       ++layer) {
    landing_bytes = std::max(landing_bytes, GradientLanding::ChargedBytes(
                                                options.gradient_dtype, tiles.layer_elems(layer)));
  }
  const int num_ring_tiles = latest == UpdateTime::kAfterHand ? options.num_gradient_tiles : 0;
  const int num_tables = latest == UpdateTime::kBesideStep ? 2 : 1;
  return landing_bytes + options.num_staging_tiles * shape.Total() +
         num_ring_tiles * tiles.max_tile_elems() * SizeOf(options.gradient_dtype) +
         num_tables * GradientSeals::TableBytes(tiles);
}

bool HasSameScalars(const UpdateScalars& a, const UpdateScalars& b) {
  return a.step == b.step && a.lr == b.lr && a.gradient_scale == b.gradient_scale &&
         a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.eps == b.eps &&
         a.rounding_seed == b.rounding_seed;
}

}  // namespace

OffloadedOptimizer::Impl::Impl(const OffloadedOptimizerOptions& options_in,
                               const Placement& placement_in, TensorStore* store_in)
    : options(options_in),
      rule(options_in.rule),
      placement(placement_in),
      store(store_in),
      tiles(store_in->tiles()),
      pool(options_in.num_threads, "optimizer"),
      host_state_offset_bytes(store_in->tiles().num_tiles()),
      due(store_in->inventory().num_streamed_layers()),
      weights_deferred(store_in->tiles().num_tiles()),
      state_deferred(store_in->tiles().num_tiles()) {}

// ---- Creation ----------------------------------------------------------------------------------

int64_t OffloadedOptimizer::StagingBytes(const OffloadedOptimizerOptions& options,
                                         const TileMap& tiles) {
  StagingShape shape;
  shape.state_bytes = tiles.max_state_bytes();
  shape.gradient_bytes = tiles.max_tile_elems() * SizeOf(options.gradient_dtype);
  if (options.may_update != UpdateTime::kOnRead) shape.weight_bytes = tiles.max_weight_bytes();
  if (options.may_update == UpdateTime::kBesideStep) shape.spill_bytes = shape.gradient_bytes;
  return StagingBytesOf(options, shape, options.may_update, tiles);
}

int64_t OffloadedOptimizer::StagingBytes(const OffloadedOptimizerOptions& options,
                                         const Placement& placement, const TileMap& tiles) {
  const auto any = [&](UpdateTime time) { return placement.NumUpdated(time) > 0; };
  const UpdateTime latest = any(UpdateTime::kBesideStep)  ? UpdateTime::kBesideStep
                            : any(UpdateTime::kAfterHand) ? UpdateTime::kAfterHand
                                                          : UpdateTime::kOnRead;
  return StagingBytesOf(options, StagingShapeOf(options, placement, tiles), latest, tiles);
}

StripeBytes OffloadedOptimizer::GradientAreaBytes(const OffloadedOptimizerOptions& options,
                                                  const Placement& placement,
                                                  const TileMap& tiles) {
  return HeldGradients::AreaBytes(placement, tiles, SizeOf(options.gradient_dtype),
                                  options.gradient_area);
}

absl::StatusOr<std::unique_ptr<OffloadedOptimizer>> OffloadedOptimizer::Create(
    const OffloadedOptimizerOptions& options, const Placement& placement, TensorStore* store,
    MemoryBudget* budget) {
  FOREBAY_CHECK(options.num_staging_tiles >= 2 && options.num_gradient_tiles >= 2);
  FOREBAY_CHECK(store->tiles().moment_set() == MomentsOf(options.rule));
  FOREBAY_CHECK(static_cast<int>(placement.state.size()) == store->tiles().num_streamed_tiles());
  auto impl = std::make_unique<Impl>(options, placement, store);
  const Inventory& inventory = store->inventory();
  FOREBAY_ASSIGN_OR_RETURN(impl->tensors,
                           TensorUpdates::Create(options.rule, inventory,
                                                 options.groups.groups.empty()
                                                     ? DecayGroups(inventory, options.weight_decay)
                                                     : options.groups,
                                                 options.missed_updates));
  FOREBAY_RETURN_IF_ERROR(impl->MakeStaging(budget));
  FOREBAY_RETURN_IF_ERROR(impl->LoadHostState(budget));
  std::vector<std::span<std::byte>> gradient_staging;
  for (const StagingBuffer& buffer : impl->staging) gradient_staging.push_back(buffer.spill);
  FOREBAY_ASSIGN_OR_RETURN(
      impl->gradients,
      HeldGradients::Create(options.gradient_dtype, options.gradient_area, impl->placement,
                            &impl->arithmetic(), store, budget, std::move(gradient_staging)));
  if (options.sum_over_parts) {
    FOREBAY_RETURN_IF_ERROR(impl->gradients->KeepBlockSums(budget));
  }
  if (options.gradient_device != nullptr) {
    FOREBAY_ASSIGN_OR_RETURN(
        impl->landing, GradientLanding::Create(options.gradient_device, options.gradient_dtype,
                                               store->inventory().largest_layer_elems(),
                                               options.gradient_device_budget, budget));
  }
  impl->writes = std::make_unique<TileWrites>(store);
  impl->staged = std::make_unique<StagedTiles>(impl->staging, impl->placement, store,
                                               impl->gradients.get(), impl->writes.get());
  FOREBAY_RETURN_IF_ERROR(impl->MakeSpeculation(budget));
  FOREBAY_RETURN_IF_ERROR(impl->MakeDelays());
  return std::unique_ptr<OffloadedOptimizer>(new OffloadedOptimizer(std::move(impl)));
}

OffloadedOptimizer::OffloadedOptimizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)), modes_(std::make_unique<UpdateModes>(impl_.get())) {}
OffloadedOptimizer::~OffloadedOptimizer() = default;

absl::Status OffloadedOptimizer::Impl::MakeStaging(MemoryBudget* budget) {
  const StagingShape shape = StagingShapeOf(options, placement, tiles);
  const auto [state_bytes, gradient_bytes, weight_bytes, spill_bytes] = shape;
  const int64_t buffer_bytes = shape.Total();
  staging.resize(options.num_staging_tiles);
  if (buffer_bytes == 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(
      staging_memory,
      TransferBuffer::Create(store, budget, "optimizer staging",
                             options.num_staging_tiles * buffer_bytes, buffer_bytes));
  for (int i = 0; i < options.num_staging_tiles; ++i) {
    const auto buffer = staging_memory.bytes().subspan(i * buffer_bytes, buffer_bytes);
    staging[i] = {buffer.first(state_bytes),
                  buffer.subspan(state_bytes, gradient_bytes),
                  buffer.subspan(state_bytes + gradient_bytes, weight_bytes),
                  {}};
    // One serves both ways, where spilling ends before the first read.
    staging[i].spill = spill_bytes > 0 ? buffer.last(spill_bytes) : staging[i].gradient;
  }
  return absl::OkStatus();
}

// Of the layers for which `takes` is true, in the order in which their gradients come.
std::vector<int> OffloadedOptimizer::Impl::TilesAsHanded(
    const std::function<bool(int layer)>& takes) const {
  std::vector<int> order;
  for (const int layer : options.hand_over_order) {
    if (!takes(layer)) continue;
    for (int i = tiles.first_tile(layer); i < tiles.first_tile(layer + 1); ++i) order.push_back(i);
  }
  return order;
}

absl::Status OffloadedOptimizer::Impl::MakeSpeculation(MemoryBudget* budget) {
  for (int i = 0; i < tiles.num_streamed_tiles(); ++i) {
    const int layer = tiles.tiles()[i].layer;
    if (placement.WaitsForNorm(layer)) {
      due_tiles.push_back(i);
      continue;
    }
    FOREBAY_CHECK(placement.gradients[layer] == Tier::kNvme);
  }
  if (placement.NumUpdated(UpdateTime::kAfterHand) == 0) return absl::OkStatus();
  // Tiles are written over until a commit.
  FOREBAY_CHECK(store->num_slots() > 1 && options.gradient_area == GradientArea::kSpilled);
  std::vector<int> order =
      TilesAsHanded([this](int layer) { return !placement.WaitsForNorm(layer); });
  FOREBAY_CHECK(static_cast<int>(order.size() + due_tiles.size()) == tiles.num_streamed_tiles());
  for (const int layer : options.hand_over_order) {
    if (!placement.WaitsForNorm(layer)) speculative_layers.push_back(layer);
  }
  const int64_t buffer_bytes = tiles.max_tile_elems() * SizeOf(options.gradient_dtype);
  FOREBAY_ASSIGN_OR_RETURN(
      ring_memory,
      HostBuffer::Create(budget, "optimizer staging", options.num_gradient_tiles * buffer_bytes));
  std::vector<std::span<std::byte>> buffers;
  for (int i = 0; i < options.num_gradient_tiles; ++i) {
    buffers.push_back(ring_memory.bytes().subspan(i * buffer_bytes, buffer_bytes));
  }
  FOREBAY_ASSIGN_OR_RETURN(speculation, BackgroundUpdates::Create(
                                            std::move(order), std::move(buffers), staged.get(),
                                            [this](int tile, const StagingBuffer& buffer,
                                                   std::span<const std::byte> gradient) {
                                              return UpdateBeside(tile, buffer, gradient);
                                            },
                                            due_tiles));
  gradients->SetSink(speculation.get());
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::MakeDelays() {
  const int64_t num_delayed = placement.NumUpdated(UpdateTime::kBesideStep);
  if (num_delayed == 0) return absl::OkStatus();
  FOREBAY_CHECK(store->num_slots() > 1 && num_delayed == tiles.num_streamed_layers());
  FOREBAY_CHECK(std::ranges::count(placement.weights, Tier::kHost) == 0);
  std::vector<int> order = TilesAsHanded([](int /*layer*/) { return true; });
  FOREBAY_CHECK(static_cast<int>(order.size()) == tiles.num_streamed_tiles());
  FOREBAY_ASSIGN_OR_RETURN(
      delays,
      BackgroundUpdates::Create(
          std::move(order), {}, staged.get(),
          [this](int tile, const StagingBuffer& buffer, std::span<const std::byte> /*gradient*/) {
            const Tile& spec = tiles.tiles()[tile];
            const std::byte* const gradient =
                staged->GradientIsRead(tile) ? buffer.gradient.data() : gradients->HostTile(tile);
            const int64_t bytes = spec.num_elems * SizeOf(options.gradient_dtype);
            return UpdateBeside(tile, buffer, {gradient, static_cast<size_t>(bytes)});
          }));
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::LoadHostState(MemoryBudget* budget) {
  int64_t size_bytes = 0;
  for (int i = 0; i < tiles.num_streamed_tiles(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    host_state_offset_bytes[i] = size_bytes;
    size_bytes += tiles.StateBytes(tiles.tiles()[i]);
  }
  if (size_bytes == 0) return absl::OkStatus();
  // Tiles differ in size, so that some lie across two pieces: one in a GiB.
  FOREBAY_ASSIGN_OR_RETURN(
      host_state,
      TransferBuffer::Create(store, budget, "optimizer state in RAM", size_bytes, kIoAlignBytes));
  return ReadHostState(0, tiles.num_streamed_tiles());
}

absl::Status OffloadedOptimizer::Impl::ReadHostState(int first_tile, int end_tile) {
  std::array<IoOp, 8> reads;
  absl::Status status;
  for (int i = first_tile; i < end_tile && status.ok(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    IoOp& read = reads[i % reads.size()];
    status.Update(store->engine().Wait(read));
    store->StartReadState(i, HostState(i), IoClass::kDemandRead, read);
  }
  for (IoOp& read : reads) status.Update(store->engine().Wait(read));
  for (int i = first_tile; i < end_tile && status.ok(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    status = store->VerifyState(i, HostState(i));
  }
  if (status.ok()) return status;
  return Annotate(status, "optimizer: reading the state that is kept in memory failed");
}

// ---- Gradients ---------------------------------------------------------------------------------

absl::Status OffloadedOptimizer::SetGroups(std::span<const ParameterGroup> groups) {
  return impl_->tensors->SetGroups(groups,
                                   /*may_freeze=*/!impl_->StepIsOpen() || impl_->is_recovered);
}

absl::Status OffloadedOptimizer::Impl::CheckHand(int layer, size_t num_elems,
                                                 std::span<const int> without_gradient) const {
  if (backward_finished || AnyIsDue()) {
    return UsageError(fmt::format(
        "optimizer: a gradient of layer {} is handed over {}. {}", layer,
        backward_finished ? "after the step's backward pass" : "while an update is due",
        backward_finished ? "Begin the update or abandon the step first"
                          : "Let every layer come in first, so that its update is applied"));
  }
  FOREBAY_RETURN_IF_ERROR(gradients->CheckHand(layer, num_elems, on_its_way.layer));
  FOREBAY_RETURN_IF_ERROR(tensors->CheckHand(layer, without_gradient));
  if (!speculates || placement.WaitsForNorm(layer)) return absl::OkStatus();
  const bool one_comes = on_its_way.layer >= 0 && !placement.WaitsForNorm(on_its_way.layer);
  const int expected = speculative_layers[num_speculated + (one_comes ? 1 : 0)];
  if (layer == expected) return absl::OkStatus();
  const std::vector<LayerSpec>& layers = store->inventory().layers();
  return UsageError(
      fmt::format("optimizer: the gradient of layer '{}' is handed over before that of layer '{}', "
                  "and layers are updated in the order that the optimizer was made with. Keep it",
                  layers[layer].name, layers[expected].name));
}

// Requires: the gradient fits, as Hand has checked.
template <typename Gradient>
absl::Status OffloadedOptimizer::Impl::TakeGradient(int layer, const Gradient& gradient,
                                                    ThreadPool& compute,
                                                    std::span<const int> without_gradient) {
  ChooseHalf();
  // Updates beside the passes have the staging buffers to themselves.
  if (speculation == nullptr && delays == nullptr) staged->ReadEarly(due_tiles);
  if (delayed_is_pending && !gradients->IsSpilled(layer)) {
    FOREBAY_RETURN_IF_ERROR(delays->AwaitTile(tiles.first_tile(layer + 1) - 1));
  }
  const std::span<const ElemRange> as_zeros = tensors->Hand(layer, without_gradient);
  const bool is_speculated = speculates && !placement.WaitsForNorm(layer);
  if (is_speculated) tensors->Prepare(layer);  // before its first tile is taken
  // Before: where it fails, some tiles of the layer may be updated, and have to be undone.
  if (is_speculated) ++num_speculated;
  FOREBAY_RETURN_IF_ERROR(gradients->Hand(layer, gradient, compute, as_zeros));
  const double sum_of_squares = gradients->sum_of_squares(layer);
  const bool is_finite = std::isfinite(sum_of_squares);
  if (!is_finite && first_nonfinite_layer < 0) first_nonfinite_layer = layer;
  handed_squares += sum_of_squares;
  if (speculates && !(handed_squares <= most_squares)) speculation->Decline();
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Hand(int layer, std::span<const float> gradient, ThreadPool& pool,
                                      std::span<const int> without_gradient) {
  FOREBAY_RETURN_IF_ERROR(impl_->CheckHand(layer, gradient.size(), without_gradient));
  FOREBAY_RETURN_IF_ERROR(impl_->gradients->CheckPadding(layer, gradient));
  FOREBAY_RETURN_IF_ERROR(impl_->Land());
  return impl_->TakeGradient(layer, gradient, pool, without_gradient);
}

absl::Status OffloadedOptimizer::Hand(int layer, const RoundedGradient& gradient, ThreadPool& pool,
                                      std::span<const int> without_gradient) {
  const size_t num_elems = gradient.elems.size() / SizeOf(impl_->options.gradient_dtype);
  FOREBAY_RETURN_IF_ERROR(impl_->CheckHand(layer, num_elems, without_gradient));
  FOREBAY_RETURN_IF_ERROR(impl_->gradients->CheckPadding(layer, gradient));
  FOREBAY_RETURN_IF_ERROR(impl_->Land());
  return impl_->TakeGradient(layer, gradient, pool, without_gradient);
}

absl::Status OffloadedOptimizer::Hand(int layer, const LayerGradient& gradient, ThreadPool& pool,
                                      std::span<const int> without_gradient) {
  if (gradient.device == DeviceKind::kHost) {
    if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(gradient.ready->Await());
    return Hand(layer, gradient.elems, pool, without_gradient);
  }
  // A gradient that does not fit is found before anything is copied.
  FOREBAY_RETURN_IF_ERROR(impl_->CheckHand(layer, gradient.elems.size(), without_gradient));
  if (impl_->landing == nullptr) {
    return UsageError(
        "optimizer: a gradient is handed over on a device, and the optimizer was made without one. "
        "Make it with the device, or copy the gradient to memory first");
  }
  FOREBAY_RETURN_IF_ERROR(impl_->landing->Start(gradient));
  FOREBAY_RETURN_IF_ERROR(impl_->Land());
  impl_->on_its_way = {.layer = layer, .compute = &pool};
  impl_->tensors->Hand(layer, without_gradient);
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::Land() {
  const auto [layer, compute] = on_its_way;
  if (layer < 0) return absl::OkStatus();
  on_its_way = {};
  FOREBAY_ASSIGN_OR_RETURN(const RoundedGradient gradient, landing->Land());
  FOREBAY_RETURN_IF_ERROR(gradients->CheckPadding(layer, gradient));
  return TakeGradient(layer, gradient, *compute, {});
}

// The half of the gradient area, by the number of the step to come: so what an update needs that is
// not committed is never written over, and whoever goes on after a crash finds it.
void OffloadedOptimizer::Impl::ChooseHalf() {
  const int64_t committed = store->committed().step;
  const bool one_is_to_commit = delayed_is_pending || committed == delayed_from;
  const int64_t to_come = committed + (one_is_to_commit ? 2 : 1);
  gradients->SetHalf(static_cast<int>(to_come % gradients->num_halves()));
}

// With all of it written, so that whoever reads a layer next finds what was made of it.
absl::Status OffloadedOptimizer::Impl::EndSpeculation(bool& complete) {
  const Stopwatch stopwatch;
  const TraceScope trace(Activity::kHandOver);
  absl::Status status = speculation->End(complete);
  staged->ReadEarly(due_tiles);
  status.Update(writes->AwaitAll());
  staged->ReadEarly(due_tiles);  // into buffers that were being written from
  const std::lock_guard lock(mutex);
  stats.hand_wait_s += stopwatch.Seconds();
  return status;
}

// Another part may have what is not finite.
absl::Status OffloadedOptimizer::Impl::SumOverParts() {
  FOREBAY_RETURN_IF_ERROR(gradients->SumWholeLayers(options.sum_over_parts));
  const auto is_not_finite = [&](int layer) {
    return !std::isfinite(gradients->sum_of_squares(layer));
  };
  const auto first = std::ranges::find_if(options.hand_over_order, is_not_finite);
  first_nonfinite_layer = first == options.hand_over_order.end() ? -1 : *first;
  return absl::OkStatus();
}

absl::StatusOr<GradientStats> OffloadedOptimizer::FinishBackward() {
  if (impl_->backward_finished) {
    return UsageError(
        "optimizer: a step's backward pass is said to have ended twice. Begin the update or "
        "abandon the step");
  }
  FOREBAY_RETURN_IF_ERROR(impl_->Land());
  FOREBAY_RETURN_IF_ERROR(impl_->gradients->Finish());
  if (impl_->options.sum_over_parts) FOREBAY_RETURN_IF_ERROR(impl_->SumOverParts());
  GradientStats stats;
  double sum = 0;
  for (int layer = 0; layer < impl_->store->inventory().num_streamed_layers(); ++layer) {
    sum += impl_->gradients->sum_of_squares(layer);
  }
  stats.norm = std::sqrt(sum);
  stats.first_nonfinite_layer = std::exchange(impl_->first_nonfinite_layer, -1);
  impl_->handed_squares = 0;
  impl_->speculation_is_complete = impl_->speculation == nullptr;
  if (impl_->speculates) {
    FOREBAY_RETURN_IF_ERROR(impl_->EndSpeculation(impl_->speculation_is_complete));
  } else if (impl_->speculation == nullptr && impl_->delays == nullptr) {
    // Each step reads as many early, however fast the disk was.
    impl_->staged->ReadEarly(impl_->due_tiles, /*waits=*/true);
  }
  impl_->backward_finished = true;
  return stats;
}

absl::Status OffloadedOptimizer::PublishIntent(int64_t step, const Json& trainer) {
  if (impl_->options.gradient_area != GradientArea::kAll) {
    return UsageError(fmt::format(
        "optimizer: the gradients of step {} are to outlive a crash, and not all are kept on the "
        "disk. Make the optimizer with GradientArea::kAll",
        step));
  }
  if (!impl_->backward_finished) {
    return UsageError(
        fmt::format("optimizer: the gradients of step {} are to outlive a crash, and its backward "
                    "pass has not ended. Publish them between FinishBackward and BeginUpdate",
                    step));
  }
  if (step % impl_->gradients->num_halves() != impl_->gradients->half()) {
    return UsageError(fmt::format(
        "optimizer: the gradients of step {} are to outlive a crash, and lie where those of an {} "
        "step do. Publish them as those of the step after the one that is committed or pending",
        step, impl_->gradients->half() == 0 ? "even" : "odd"));
  }
  return impl_->store->PublishIntent({step, SizeOf(impl_->options.gradient_dtype),
                                      EncodeIntentWords(trainer, impl_->tensors->LeftAlone())},
                                     impl_->gradients->seals_table());
}

RecoveredGradients OffloadedOptimizer::RecoverGradients(
    const std::function<absl::Status(double)>& progress) {
  RecoveredGradients recovered;
  const bool is_kept = impl_->options.gradient_area == GradientArea::kAll;
  if (!is_kept || impl_->StepIsOpen() || AnyUpdateIsDue()) {
    recovered.damage = UsageError(
        "optimizer: kept gradients are looked for where none are kept, or in the midst of a step. "
        "Look for them once, before the first step, with GradientArea::kAll");
    return recovered;
  }
  impl_->ChooseHalf();
  absl::StatusOr<std::optional<StepIntent>> intent =
      impl_->store->FindIntent(impl_->gradients->seals_table());
  recovered.damage = intent.status();
  if (!intent.ok() || !intent->has_value() ||
      (*intent)->gradient_elem_bytes != SizeOf(impl_->options.gradient_dtype)) {
    return recovered;
  }
  absl::StatusOr<IntentWords> words =
      DecodeIntentWords((*intent)->trainer, impl_->store->inventory().tensors().size());
  recovered.damage = words.status();
  if (recovered.damage.ok()) {
    recovered.damage = impl_->gradients->Recover(impl_->pool, progress);
  }
  if (!recovered.damage.ok()) return recovered;
  recovered.intent = *std::move(intent);
  recovered.intent->trainer = std::move(words->trainer);
  impl_->tensors->Recover(words->left_alone);
  impl_->backward_finished = impl_->is_recovered = true;
  return recovered;
}

void OffloadedOptimizer::AbandonStep() {
  if (impl_->landing != nullptr) impl_->landing->Drop();
  impl_->on_its_way = {};
  impl_->gradients->Abandon();
  impl_->tensors->AbandonStep();
  if (impl_->speculates) {
    impl_->speculation->Drop();
    // A write that failed stays the error of its tile.
    impl_->writes->AwaitAll().IgnoreError();
    impl_->store->DiscardWrites();
    impl_->speculates = false;
  }
  impl_->handed_squares = 0;
  impl_->first_nonfinite_layer = -1;
  impl_->backward_finished = impl_->is_recovered = false;
}

absl::Status OffloadedOptimizer::Impl::CheckBeginUpdate(const UpdateScalars& scalars,
                                                        ResidentWrites writes_resident,
                                                        UpdateTiming timing) const {
  FOREBAY_RETURN_IF_ERROR(Failure());
  const auto misuse = [&](std::string_view why, std::string_view advice) {
    return UsageError(fmt::format("optimizer: update {} begins {}. {}", scalars.step, why, advice));
  };
  if (AnyIsDue() || delayed_is_pending) {
    return misuse("while that before it is due or pending", "Let it be applied first");
  }
  if (!backward_finished) {
    return misuse("before its backward pass has ended", "Call FinishBackward first");
  }
  if (speculation != nullptr && !(speculates && speculation_is_complete)) {
    return misuse("with speculation that is not complete",
                  "Abandon the step, begin speculation and hand its gradients over again");
  }
  if (speculation != nullptr && !HasSameScalars(scalars, step)) {
    return misuse("with other scalars than its speculation",
                  "Give the same, or abandon the step and begin it again");
  }
  const bool writes_all = writes_resident == ResidentWrites::kNow;
  if (!writes_all && (speculation != nullptr || timing == UpdateTiming::kDelayed)) {
    return misuse("with deferred writes, and is speculative or delayed",
                  "Begin it with ResidentWrites::kNow");
  }
  if (timing == UpdateTiming::kDelayed && delays == nullptr) {
    return misuse("delayed, and the placement delays none", "Begin it as a lazy one");
  }
  return tensors->CheckStep(scalars.step);
}

void OffloadedOptimizer::Impl::TakeStep(const UpdateScalars& scalars,
                                        ResidentWrites writes_resident) {
  backward_finished = is_recovered = false;
  // An update that speculation has begun keeps its groups.
  if (!std::exchange(speculates, false)) tensors->TakeGroups();
  tensors->BeginUpdate();
  step = scalars;
  resident = writes_resident;
  gradients->BeginUpdate();
}

absl::Status OffloadedOptimizer::BeginUpdate(const UpdateScalars& step, ResidentWrites resident) {
  FOREBAY_RETURN_IF_ERROR(CheckBeginUpdate(step, resident));
  impl_->TakeStep(step, resident);
  impl_->staged->Begin(impl_->due_tiles);
  // Last: from here on the swapper's thread may update.
  for (size_t layer = 0; layer < impl_->due.size(); ++layer) {
    impl_->due[layer].store(impl_->placement.WaitsForNorm(static_cast<int>(layer)),
                            std::memory_order_release);
  }
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::CheckBeginUpdate(const UpdateScalars& step,
                                                  ResidentWrites resident) const {
  return impl_->CheckBeginUpdate(step, resident, UpdateTiming::kAsPlaced);
}

std::vector<int64_t> OffloadedOptimizer::MissedUpdatesAfter() const {
  const std::span<const int64_t> missed = impl_->tensors->missed();
  std::vector<int64_t> after(missed.begin(), missed.end());
  const std::vector<uint8_t> left_alone = impl_->tensors->LeftAlone();
  for (size_t i = 0; i < after.size(); ++i) after[i] += left_alone[i];
  return after;
}

std::span<const int64_t> OffloadedOptimizer::missed_updates() const {
  return impl_->tensors->missed();
}

}  // namespace forebay
