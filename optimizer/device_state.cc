#include "forebay/optimizer/device_state.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/stream_trace.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {

int64_t DeviceState::WorkBytes(const TileMap& tiles, DType gradient_dtype) {
  return WorkBytes(tiles.max_weight_bytes(), tiles.max_tile_elems(), gradient_dtype);
}

int64_t DeviceState::WorkBytes(int64_t weight_bytes, int64_t num_elems, DType gradient_dtype) {
  return kNumPlaces * (weight_bytes + num_elems * SizeOf(gradient_dtype));
}

int64_t DeviceState::ChargedBytes(const TileMap& tiles) {
  constexpr int64_t kNumLandings = std::tuple_size_v<decltype(landings_)>;
  return kNumLandings * HostBuffer::ChargedBytes(tiles.max_state_bytes());
}

absl::StatusOr<std::unique_ptr<DeviceState>> DeviceState::Create(
    Device* device, DType gradient_dtype, const Placement& placement, TensorStore* store,
    TileWrites* writes, MemoryBudget* device_budget, MemoryBudget* budget) {
  std::unique_ptr<DeviceState> state(new DeviceState(gradient_dtype, store, writes));
  FOREBAY_RETURN_IF_ERROR(state->MakeMemory(device, placement, device_budget, budget));
  FOREBAY_RETURN_IF_ERROR(state->Load(0, state->tiles_.num_streamed_tiles()));
  return state;
}

absl::Status DeviceState::MakeMemory(Device* device, const Placement& placement,
                                     MemoryBudget* device_budget, MemoryBudget* budget) {
  int64_t size_bytes = WorkBytes(tiles_, gradient_dtype_);
  for (int i = 0; i < tiles_.num_streamed_tiles(); ++i) {
    const bool is_here = placement.state[static_cast<size_t>(i)] == Tier::kDevice;
    offset_bytes_.push_back(is_here ? size_bytes : -1);
    if (is_here) size_bytes += tiles_.StateBytes(tiles_.tiles()[static_cast<size_t>(i)]);
  }
  FOREBAY_ASSIGN_OR_RETURN(
      on_device_, DeviceAllocation::Create(device_budget, device, "optimizer state", size_bytes));
  for (Landing& landing : landings_) {
    FOREBAY_ASSIGN_OR_RETURN(
        landing.memory,
        TransferBuffer::Create(store_, budget, "optimizer state from and to the GPU",
                               tiles_.max_state_bytes(), tiles_.max_state_bytes(), device));
    FOREBAY_ASSIGN_OR_RETURN(landing.is_there, device->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(to_device_, CreateTracedStream(device, "to the updates"));
  FOREBAY_ASSIGN_OR_RETURN(stream_, CreateTracedStream(device, "updates"));
  FOREBAY_ASSIGN_OR_RETURN(to_host_, CreateTracedStream(device, "from the updates"));
  return MakePlaces(device);
}

absl::Status DeviceState::MakePlaces(Device* device) {
  std::byte* at = on_device_.address();
  for (Place& place : places_) {
    place.weights = at;
    place.gradient = at + tiles_.max_weight_bytes();
    at = place.gradient + tiles_.max_tile_elems() * SizeOf(gradient_dtype_);
    for (std::unique_ptr<Event>* event : {&place.is_there, &place.is_updated, &place.is_back}) {
      FOREBAY_ASSIGN_OR_RETURN(*event, device->CreateEvent());
    }
  }
  return absl::OkStatus();
}

std::span<std::byte> DeviceState::StateOf(int tile) const {
  const int64_t offset_bytes = offset_bytes_[static_cast<size_t>(tile)];
  FOREBAY_CHECK(offset_bytes >= 0);
  const int64_t bytes = tiles_.StateBytes(tiles_.tiles()[static_cast<size_t>(tile)]);
  return {on_device_.address() + offset_bytes, static_cast<size_t>(bytes)};
}

absl::StatusOr<DeviceState::Landing*> DeviceState::NextLanding() {
  Landing& landing = landings_[next_landing_++ % landings_.size()];
  FOREBAY_RETURN_IF_ERROR(TakeRead(landing));
  const int written_tile = std::exchange(landing.written_tile, -1);
  if (written_tile >= 0) FOREBAY_RETURN_IF_ERROR(writes_->AwaitState(written_tile));
  return &landing;
}

absl::Status DeviceState::Load(int first_tile, int end_tile) {
  absl::Status status;
  for (int i = first_tile; i < end_tile && status.ok(); ++i) {
    if (offset_bytes_[static_cast<size_t>(i)] < 0) continue;
    const absl::StatusOr<Landing*> landing = NextLanding();
    status = landing.status();
    if (!status.ok()) break;
    (*landing)->read_tile = i;
    store_->StartReadState(i, (*landing)->memory.bytes().first(StateOf(i).size()), IoClass::kDemand,
                           (*landing)->read);
  }
  for (Landing& landing : landings_) status.Update(TakeRead(landing));
  if (status.ok()) return status;
  return Annotate(status, "optimizer: bringing the state that lives on the GPU there failed");
}

absl::Status DeviceState::TakeRead(Landing& landing) {
  const int tile = std::exchange(landing.read_tile, -1);
  if (tile < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(store_->engine().Wait(landing.read));
  const std::span<std::byte> to = StateOf(tile);
  const std::span<std::byte> state = landing.memory.bytes().first(to.size());
  FOREBAY_RETURN_IF_ERROR(store_->VerifyState(tile, state));
  {
    const StreamScope scope(*to_device_, "state", ScopeOf(tile), std::ssize(state));
    FOREBAY_RETURN_IF_ERROR(to_device_->CopyToDevice(to.data(), state));
  }
  return to_device_->Await();
}

absl::StatusOr<DeviceState::Planes> DeviceState::Begin(int tile, std::span<const std::byte> weights,
                                                       std::span<const std::byte> gradient) {
  FOREBAY_CHECK(num_begun_ - num_awaited_ < kNumPlaces);
  Place& place = PlaceAt(num_begun_++);
  {
    const StreamScope scope(*to_device_, "weights and gradient", ScopeOf(tile),
                            std::ssize(weights) + std::ssize(gradient));
    FOREBAY_RETURN_IF_ERROR(to_device_->CopyToDevice(place.weights, weights));
    FOREBAY_RETURN_IF_ERROR(to_device_->CopyToDevice(place.gradient, gradient));
  }
  FOREBAY_RETURN_IF_ERROR(to_device_->Record(*place.is_there));
  FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*place.is_there));
  return Planes{.weights = {place.weights, weights.size()},
                .state = StateOf(tile),
                .gradient = {place.gradient, gradient.size()}};
}

absl::Status DeviceState::AwaitInputs() {
  return PlaceAt(num_begun_ - 1).is_there->Await();
}

absl::StatusOr<std::span<std::byte>> DeviceState::CopyBack(int tile) {
  FOREBAY_ASSIGN_OR_RETURN(Landing* const landing, NextLanding());
  landing->written_tile = tile;
  const std::span<std::byte> from = StateOf(tile);
  const std::span<std::byte> state = landing->memory.bytes().first(from.size());
  {
    const StreamScope scope(*to_host_, "state", ScopeOf(tile), std::ssize(state));
    FOREBAY_RETURN_IF_ERROR(to_host_->CopyToHost(state, from.data()));
  }
  FOREBAY_RETURN_IF_ERROR(to_host_->Record(*landing->is_there));
  return state;
}

absl::Status DeviceState::AwaitCopyBack(int tile) {
  const auto landing = std::ranges::find(landings_, tile, &Landing::written_tile);
  FOREBAY_CHECK(landing != landings_.end());
  return landing->is_there->Await();
}

absl::StatusOr<std::span<std::byte>> DeviceState::End(int tile, std::span<std::byte> weights,
                                                      bool with_state) {
  Place& place = PlaceAt(num_begun_ - 1);
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*place.is_updated));
  FOREBAY_RETURN_IF_ERROR(to_host_->WaitFor(*place.is_updated));
  std::span<std::byte> state;
  if (with_state) {
    FOREBAY_ASSIGN_OR_RETURN(state, CopyBack(tile));
  }
  {
    const StreamScope scope(*to_host_, "weights", ScopeOf(tile), std::ssize(weights));
    FOREBAY_RETURN_IF_ERROR(to_host_->CopyToHost(weights, place.weights));
  }
  FOREBAY_RETURN_IF_ERROR(to_host_->Record(*place.is_back));
  return state;
}

absl::Status DeviceState::Await() {
  FOREBAY_CHECK(num_awaited_ < num_begun_);
  return PlaceAt(num_awaited_++).is_back->Await();
}

void DeviceState::AwaitAll() {
  for (Stream* stream : {to_device_.get(), stream_.get(), to_host_.get()}) {
    stream->Await().IgnoreError();
  }
  num_awaited_ = num_begun_;
}

}  // namespace forebay
