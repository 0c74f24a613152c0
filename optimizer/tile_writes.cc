#include "forebay/optimizer/tile_writes.h"

#include <string>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

TileWrites::TileWrites(TensorStore* store)
    : store_(store), weights_(store->tiles().num_tiles()), state_(store->tiles().num_tiles()) {}

TileWrites::~TileWrites() {
  // Whoever needed the results has asked for them; here only the buffers matter.
  AwaitAll().IgnoreError();
}

void TileWrites::StartWeights(int tile, std::span<std::byte> buffer, int64_t step) {
  Write& write = weights_[tile];
  {
    const std::lock_guard lock(weights_mutex_);
    FOREBAY_CHECK(write.step == kNone && !write.has_waiter);
  }
  store_->StartWriteWeights(tile, buffer, write.op, Sealed::kYes);
  // From here on others find it.
  const std::lock_guard lock(weights_mutex_);
  write.step = step;
}

void TileWrites::StartState(int tile, std::span<std::byte> buffer, int64_t step) {
  Write& write = state_[tile];
  FOREBAY_CHECK(write.step == kNone);
  write.step = step;
  store_->StartWriteState(tile, buffer, write.op, Sealed::kYes);
}

absl::Status TileWrites::Await(Write& write, int tile, std::string_view what, bool& completed) {
  completed = false;
  const absl::Status status = store_->engine().Wait(write.op);
  if (!status.ok()) {
    const int layer = store_->tiles().tiles()[tile].layer;
    write.failure = Annotate(
        status, fmt::format("optimizer: step {}: writing the {} of tile {} (layer '{}') failed",
                            write.step, what, tile, store_->inventory().layers()[layer].name));
    return write.failure;
  }
  write.step = kNone;
  completed = true;
  return absl::OkStatus();
}

absl::Status TileWrites::AwaitWeights(int tile) {
  Write& write = weights_[tile];
  {
    std::unique_lock lock(weights_mutex_);
    // An operation has one waiter; whoever comes later waits for that one.
    weights_waited_for_.wait(lock, [&] { return !write.has_waiter; });
    if (write.step == kNone || !write.failure.ok()) return write.failure;
    write.has_waiter = true;
  }
  bool completed = false;
  const absl::Status status = Await(write, tile, "weights", completed);
  if (completed) store_->MarkWeightsWritten(tile);
  {
    const std::lock_guard lock(weights_mutex_);
    write.has_waiter = false;
  }
  weights_waited_for_.notify_all();
  return status;
}

absl::Status TileWrites::AwaitState(int tile) {
  Write& write = state_[tile];
  if (write.step == kNone || !write.failure.ok()) return write.failure;
  bool completed = false;
  const absl::Status status = Await(write, tile, "optimizer state", completed);
  if (completed) store_->MarkStateWritten(tile);
  return status;
}

absl::Status TileWrites::AwaitAll(absl::FunctionRef<void()> meanwhile) {
  absl::Status first_error;
  for (int tile = 0; tile < store_->tiles().num_tiles(); ++tile) {
    first_error.Update(AwaitWeights(tile));
    first_error.Update(AwaitState(tile));
    meanwhile();
  }
  return first_error;
}

}  // namespace forebay
