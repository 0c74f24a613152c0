#include "forebay/swap/window/step_schedule.h"

#include <algorithm>
#include <array>

#include "forebay/base/check.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {
namespace {

// The swapper's window (swapper.cc) without the transfers: each access gets its buffer as early as
// there is one, and the rule for choosing among several makes the choice independent of when.
class WindowTrace {
 public:
  WindowTrace(const StepSchedule& schedule, const WindowOptions& window, const Placement& placement,
              const TileMap& tiles)
      : classes_(BufferClassesOf(window, placement, tiles)),
        buffers_{std::vector<Buffer>(static_cast<size_t>(window.num_block_buffers)),
                 std::vector<Buffer>(static_cast<size_t>(window.num_large_buffers))},
        reads_(classes_.size()),
        is_speculative_(placement.speculative),
        forgets_all_(placement.delays_updates) {
    for (const int layer : schedule.Accesses()) {
      if (classes_[layer] != BufferClass::kResident) accesses_.push_back({layer, nullptr});
    }
  }

  void RunStep() {
    reads_.assign(reads_.size(), 0);
    size_t num_released = 0;
    for (size_t i = 0; i < accesses_.size(); ++i) {
      Buffer* buffer = Find(accesses_[i].layer);
      while (buffer == nullptr && (buffer = Choose(i)) == nullptr) Release(num_released++);
      if (buffer->layer != accesses_[i].layer) ++reads_[accesses_[i].layer];
      buffer->layer = accesses_[i].layer;
      ++buffer->num_users;
      accesses_[i].buffer = buffer;
    }
    while (num_released < accesses_.size()) Release(num_released++);
    Forget();
  }

  const std::vector<int>& reads() const { return reads_; }

 private:
  struct Buffer {
    int layer = -1;
    int num_users = 0;
    int64_t last_use = 0;
  };
  struct Access {
    int layer;
    Buffer* buffer;
  };
  std::vector<Buffer>& BuffersOf(int layer) { return buffers_[static_cast<int>(classes_[layer])]; }

  Buffer* Find(int layer) {
    for (Buffer& buffer : BuffersOf(layer)) {
      if (buffer.layer == layer) return &buffer;
    }
    return nullptr;
  }

  void Release(size_t access) {
    FOREBAY_CHECK(accesses_[access].buffer != nullptr);
    Buffer& buffer = *accesses_[access].buffer;
    --buffer.num_users;
    buffer.last_use = ++num_uses_;
  }

  // As Swapper::ForgetSpeculative and SwitchTo.
  void Forget() {
    for (std::vector<Buffer>& buffers : buffers_) {
      for (Buffer& buffer : buffers) {
        const bool is_updated_outside =
            !is_speculative_.empty() && buffer.layer >= 0 && is_speculative_[buffer.layer];
        if (forgets_all_ || is_updated_outside) buffer.layer = -1;
      }
    }
  }

  // As Swapper::Impl::ChooseBuffer.
  Buffer* Choose(size_t access) {
    Buffer* chosen = nullptr;
    for (Buffer& buffer : BuffersOf(accesses_[access].layer)) {
      if (buffer.num_users > 0) continue;
      if (chosen == nullptr || buffer.last_use < chosen->last_use) chosen = &buffer;
    }
    return chosen;
  }

  const std::vector<BufferClass> classes_;
  std::array<std::vector<Buffer>, kNumWindowClasses> buffers_;
  std::vector<Access> accesses_;
  std::vector<int> reads_;  // by layer, of the last step
  const std::vector<bool> is_speculative_;
  const bool forgets_all_;
  int64_t num_uses_ = 0;
};

}  // namespace

std::vector<int> StepSchedule::Accesses() const {
  std::vector<int> accesses = forward;
  accesses.insert(accesses.end(), backward.begin(), backward.end());
  return accesses;
}

StepSchedule ChainSchedule(int num_layers, bool loss_reads_first) {
  FOREBAY_CHECK(num_layers >= 3);
  StepSchedule schedule;
  for (int layer = 0; layer < num_layers; ++layer) schedule.forward.push_back(layer);
  if (loss_reads_first) schedule.forward.push_back(0);
  schedule.num_loss_layers = loss_reads_first ? 2 : 1;
  for (int layer = num_layers - 2; layer >= 1; --layer) schedule.backward.push_back(layer);
  for (int layer = num_layers - 1; layer >= 0; --layer) schedule.handed.push_back(layer);
  return schedule;
}

std::vector<StepBuffers> StepBufferChoices(int num_stripes) {
  constexpr int kTilesOfADisk = 4;
  constexpr int kMostTiles = 32;
  std::vector<StepBuffers> choices = {{kTilesOfADisk, 3}, {2, 3}, {2, 2}};
  const int num_tiles = std::min(kMostTiles, kTilesOfADisk * num_stripes);
  if (num_stripes > 1) choices.insert(choices.begin(), {num_tiles, 3});
  return choices;
}

WindowOptions ChainWindow(int num_layers, const StepBuffers& buffers) {
  return {.num_block_buffers = buffers.num_block_buffers,
          .num_large_buffers = 1,
          .first_block_layer = 1,
          .last_block_layer = num_layers - 2};
}

std::vector<int> CountWeightReads(const StepSchedule& schedule, const WindowOptions& window,
                                  const Placement& placement, const TileMap& tiles) {
  WindowTrace trace(schedule, window, placement, tiles);
  // The first step finds the window empty. What it leaves there depends on the schedule alone, so
  // that from the second on all are alike.
  trace.RunStep();
  trace.RunStep();
  return trace.reads();
}

StepTransfers CountTransfers(const StepSchedule& schedule, const WindowOptions& window,
                             const Placement& placement, const TileMap& tiles,
                             int64_t gradient_bytes_per_elem) {
  StepTransfers transfers;
  const std::vector<int> weight_reads = CountWeightReads(schedule, window, placement, tiles);
  for (int layer = 0; layer < tiles.num_layers(); ++layer) {
    transfers.read_bytes += weight_reads[layer] * LayerWeightBytes(tiles, layer);
    if (placement.IsSpilled(layer)) {
      transfers.read_bytes += tiles.layer_elems(layer) * gradient_bytes_per_elem;
      transfers.write_bytes += tiles.layer_elems(layer) * gradient_bytes_per_elem;
    }
  }
  for (int tile = 0; tile < tiles.num_tiles(); ++tile) {
    // Updated outside of the window.
    if (placement.delays_updates || placement.IsSpeculative(tiles.tiles()[tile].layer)) {
      transfers.read_bytes += tiles.WeightBytes(tiles.tiles()[tile]);
    }
    if (placement.state[tile] == Tier::kNvme) {
      transfers.read_bytes += tiles.StateBytes(tiles.tiles()[tile]);
    }
  }
  // What lives in RAM is written too; checksums and record go to two places in every folder.
  transfers.commit_bytes = placement.host_weight_bytes + placement.host_state_bytes +
                           2 * TensorStore::SealBytes(tiles, /*num_slots=*/1) +
                           2 * kCommitRecordBytes * tiles.num_stripes();
  transfers.write_bytes += tiles.weight_area_bytes() + tiles.state_area_bytes() -
                           placement.host_weight_bytes - placement.host_state_bytes +
                           transfers.commit_bytes;
  return transfers;
}

}  // namespace forebay
