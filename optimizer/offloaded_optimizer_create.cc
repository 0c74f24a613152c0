// How an optimizer is made: its memory, what it loads, and the updates beside the passes.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/offloaded_optimizer_impl.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/optimizer/update_modes.h"

namespace forebay {
namespace {

// The buffers in RAM of state on a device, where there is any.
int64_t DeviceStateBytes(bool any, const TileMap& tiles) {
  return any ? DeviceState::ChargedBytes(tiles) : 0;
}

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

bool Lands(const OffloadedOptimizerOptions& options) {
  return options.device != nullptr && options.lands_gradients;
}

int64_t LandingElems(const OffloadedOptimizerOptions& options, const TileMap& tiles) {
  if (options.landing_elems > 0) return options.landing_elems;
  std::vector<int64_t> layer_elems;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    layer_elems.push_back(tiles.layer_elems(layer));
  }
  return GradientLanding::PartElems(std::move(layer_elems));
}

// `latest`: when layers are updated at last.
int64_t StagingBytesOf(const OffloadedOptimizerOptions& options, const StagingShape& shape,
                       UpdateTime latest, const TileMap& tiles) {
  const int64_t landing_bytes =
      Lands(options)
          ? GradientLanding::ChargedBytes(options.gradient_dtype, LandingElems(options, tiles))
          : 0;
  const int num_ring_tiles = latest == UpdateTime::kAfterHand ? options.num_gradient_tiles : 0;
  const int num_tables = latest == UpdateTime::kAfterNextHand ? 2 : 1;
  return landing_bytes + options.num_staging_tiles * shape.Total() +
         num_ring_tiles * tiles.max_tile_elems() * SizeOf(options.gradient_dtype) +
         num_tables * GradientSeals::TableBytes(tiles);
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

int64_t OffloadedOptimizer::StagingBytes(const OffloadedOptimizerOptions& options,
                                         const TileMap& tiles) {
  StagingShape shape;
  shape.state_bytes = tiles.max_state_bytes();
  shape.gradient_bytes = tiles.max_tile_elems() * SizeOf(options.gradient_dtype);
  if (options.may_update != UpdateTime::kOnRead) shape.weight_bytes = tiles.max_weight_bytes();
  if (options.may_update == UpdateTime::kAfterNextHand) shape.spill_bytes = shape.gradient_bytes;
  return StagingBytesOf(options, shape, options.may_update, tiles) +
         DeviceStateBytes(options.may_have_state_on_device, tiles);
}

int64_t OffloadedOptimizer::StagingBytes(const OffloadedOptimizerOptions& options,
                                         const Placement& placement, const TileMap& tiles) {
  const auto any = [&](UpdateTime time) { return placement.NumUpdated(time) > 0; };
  const UpdateTime latest = any(UpdateTime::kAfterNextHand) ? UpdateTime::kAfterNextHand
                            : any(UpdateTime::kAfterHand)   ? UpdateTime::kAfterHand
                                                            : UpdateTime::kOnRead;
  return StagingBytesOf(options, StagingShapeOf(options, placement, tiles), latest, tiles) +
         DeviceStateBytes(placement.AnyOnDevice(), tiles);
}

StripeBytes OffloadedOptimizer::GradientAreaBytes(const OffloadedOptimizerOptions& options,
                                                  const Placement& placement,
                                                  const TileMap& tiles) {
  return HeldGradients::AreaBytes(placement, tiles, SizeOf(options.gradient_dtype));
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
      HeldGradients::Create(options.gradient_dtype, impl->placement, &impl->arithmetic(), store,
                            budget, std::move(gradient_staging), impl->PinsFor()));
  if (options.sum_over_parts) {
    FOREBAY_RETURN_IF_ERROR(impl->gradients->KeepBlockSums(budget));
  }
  if (Lands(options)) {
    FOREBAY_ASSIGN_OR_RETURN(impl->landing,
                             GradientLanding::Create(options.device, options.gradient_dtype,
                                                     LandingElems(options, store->tiles()),
                                                     options.device_budget, budget));
  }
  impl->writes = std::make_unique<TileWrites>(store);
  FOREBAY_RETURN_IF_ERROR(impl->MakeDeviceState(budget));
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
                             options.num_staging_tiles * buffer_bytes, buffer_bytes, PinsFor()));
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

// The tiles of layers for which `takes` is true, in the order in which their gradients come.
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
  FOREBAY_CHECK(store->num_slots() > 1);
  std::vector<int> order =
      TilesAsHanded([this](int layer) { return !placement.WaitsForNorm(layer); });
  FOREBAY_CHECK(static_cast<int>(order.size() + due_tiles.size()) == tiles.num_streamed_tiles());
  for (const int layer : options.hand_over_order) {
    if (!placement.WaitsForNorm(layer)) speculative_layers.push_back(layer);
  }
  const int64_t buffer_bytes = tiles.max_tile_elems() * SizeOf(options.gradient_dtype);
  FOREBAY_ASSIGN_OR_RETURN(
      ring_memory,
      HostBuffer::Create(budget, "optimizer staging", options.num_gradient_tiles * buffer_bytes,
                         {.device = PinsFor()}));
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
  const int64_t num_layers = placement.NumUpdated(UpdateTime::kAfterNextHand);
  if (num_layers == 0) return absl::OkStatus();
  FOREBAY_CHECK(num_layers == tiles.num_streamed_layers());
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
            return UpdateBeside(tile, buffer, {gradient, GradientBytes(spec)});
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

absl::Status OffloadedOptimizer::Impl::MakeDeviceState(MemoryBudget* budget) {
  if (!placement.AnyOnDevice()) return absl::OkStatus();
  FOREBAY_CHECK(options.device != nullptr && options.arithmetic == nullptr);
  FOREBAY_ASSIGN_OR_RETURN(
      device_state, DeviceState::Create(options.device, options.gradient_dtype, placement, store,
                                        writes.get(), options.device_budget, budget));
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::ReadResidentState(int first_tile, int end_tile) {
  FOREBAY_RETURN_IF_ERROR(ReadHostState(first_tile, end_tile));
  return device_state == nullptr ? absl::OkStatus() : device_state->Load(first_tile, end_tile);
}

absl::Status OffloadedOptimizer::Impl::ReadHostState(int first_tile, int end_tile) {
  std::array<IoOp, 8> reads;
  absl::Status status;
  for (int i = first_tile; i < end_tile && status.ok(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    IoOp& read = reads[i % reads.size()];
    status.Update(store->engine().Wait(read));
    store->StartReadState(i, HostState(i), IoClass::kDemand, read);
  }
  for (IoOp& read : reads) status.Update(store->engine().Wait(read));
  for (int i = first_tile; i < end_tile && status.ok(); ++i) {
    if (placement.state[i] != Tier::kHost) continue;
    status = store->VerifyState(i, HostState(i));
  }
  if (status.ok()) return status;
  return Annotate(status, "optimizer: reading the state that is kept in memory failed");
}

}  // namespace forebay
