#include "forebay/swap/window/step_transfers.h"

#include <algorithm>
#include <numeric>

#include "forebay/base/check.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {
namespace {

// The window without the transfers: each access gets its buffer as early as there is one.
class WindowTrace {
 public:
  WindowTrace(const StepSchedule& schedule, const WindowOptions& window, const Placement& placement,
              const TileMap& tiles)
      : buffers_(WindowBuffersOf(window, placement, tiles)), placement_(placement) {
    for (const auto& [kind, layer] : schedule.operations) {
      if (kind == OperationKind::kRead) accesses_.push_back(layer);
      if (kind == OperationKind::kRelease) releases_.push_back(layer);
    }
  }

  void RunStep() {
    reads_.assign(static_cast<size_t>(buffers_.num_layers()), 0);
    size_t num_released = 0;
    const auto release = [&] { buffers_.Release(buffers_.Find(releases_[num_released++])); };
    for (const int layer : accesses_) {
      while (buffers_.Choose(layer) < 0) {
        FOREBAY_CHECK(num_released < releases_.size());  // it holds more than the window has
        release();
      }
      if (buffers_.Find(layer) < 0) ++reads_[layer];
      buffers_.Take(buffers_.Choose(layer), layer);
    }
    while (num_released < releases_.size()) release();
    Forget();
  }

  const std::vector<int>& reads() const { return reads_; }

 private:
  // As the swapper does between steps: ForgetUpdatedOutside and SwitchTo.
  void Forget() {
    for (int buffer = 0; buffer < buffers_.num_buffers(); ++buffer) {
      const int layer = buffers_[buffer].layer;
      const bool is_old = layer >= 0 && placement_.UpdateTimeOf(layer) != UpdateTime::kOnRead &&
                          buffers_[buffer].buffer_class != BufferClass::kResident;
      if (is_old) buffers_.Forget(buffer);
    }
  }

  WindowBuffers buffers_;
  const Placement& placement_;
  std::vector<int> accesses_;  // layers, in the order in which they are read
  std::vector<int> releases_;  // the same, in the order in which they are released
  std::vector<int> reads_;     // by layer, of the last step
};

}  // namespace

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

WindowOptions ModuleWindow(const TileMap& tiles, const StepBuffers& buffers) {
  std::vector<int> by_size(static_cast<size_t>(tiles.num_streamed_layers()));
  std::iota(by_size.begin(), by_size.end(), 0);
  std::ranges::stable_sort(by_size, {}, [&](int layer) { return tiles.layer_elems(layer); });
  const int64_t median = tiles.layer_elems(by_size[by_size.size() / 2]);
  while (tiles.layer_elems(by_size.back()) > 2 * median) by_size.pop_back();
  const int largest_block = by_size.back();
  const int num_large = tiles.num_streamed_layers() - static_cast<int>(by_size.size());
  return {.num_block_buffers = buffers.num_block_buffers,
          .num_large_buffers = std::clamp(num_large, 1, 2),
          .first_block_layer = largest_block,
          .last_block_layer = largest_block};
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

namespace {

// Walks the operations and adds up what each moves.
class TransferCount {
 public:
  TransferCount(const StepSchedule& schedule, const WindowOptions& window,
                const Placement& placement, const TileMap& tiles, int64_t gradient_bytes_per_elem,
                int64_t activation_bytes)
      : placement_(placement),
        tiles_(tiles),
        gradient_bytes_per_elem_(gradient_bytes_per_elem),
        activation_bytes_(activation_bytes),
        reads_left_(CountWeightReads(schedule, window, placement, tiles)) {
    for (const Operation& operation : schedule.operations) {
      const TransferBytes before = {transfers_.read_bytes, transfers_.write_bytes};
      Add(operation);
      TransferBytes& part = PartOf(operation);
      part.read += transfers_.read_bytes - before.read;
      part.write += transfers_.write_bytes - before.write;
      loss_is_there_ |= operation.kind == OperationKind::kLossAndGradient;
    }
  }

  const StepTransfers& transfers() const { return transfers_; }

 private:
  void Add(const Operation& operation) {
    switch (operation.kind) {
      case OperationKind::kRead:
        AddRead(operation.layer);
        break;
      case OperationKind::kHand:
        if (placement_.IsSpilled(operation.layer)) {
          transfers_.write_bytes += GradientBytes(operation.layer);
        }
        break;
      case OperationKind::kSpill:
        transfers_.write_bytes += activation_bytes_;
        break;
      case OperationKind::kFetch:
        transfers_.read_bytes += activation_bytes_;
        break;
      case OperationKind::kUpdate:
        AddUpdate(operation.layer);
        break;
      case OperationKind::kWrite:
        AddWrite(operation.layer);
        break;
      case OperationKind::kCommit:
        AddCommit();
        break;
      default:  // computes
        break;
    }
  }

  TransferBytes& PartOf(const Operation& operation) {
    const bool updates =
        operation.kind == OperationKind::kUpdate || operation.kind == OperationKind::kWrite;
    if (updates && placement_.UpdateTimeOf(operation.layer) == UpdateTime::kBesideStep) {
      return transfers_.beside;
    }
    const bool is_forward = !loss_is_there_ || operation.kind == OperationKind::kCommit;
    return is_forward ? transfers_.forward : transfers_.backward;
  }

  // Which of a layer's reads find it in the window does not change the sum.
  void AddRead(int layer) {
    if (reads_left_[layer]-- > 0) transfers_.read_bytes += LayerWeightBytes(tiles_, layer);
  }

  void AddUpdate(int layer) {
    if (placement_.IsSpilled(layer)) transfers_.read_bytes += GradientBytes(layer);
    // An update works on the weights that the window has, or outside of it on its own copy.
    const bool is_in_window = placement_.UpdateTimeOf(layer) == UpdateTime::kOnRead ||
                              placement_.weights[layer] == Tier::kHost;
    for (int i = tiles_.first_tile(layer); i < tiles_.first_tile(layer + 1); ++i) {
      const Tile& tile = tiles_.tiles()[i];
      if (!is_in_window) transfers_.read_bytes += tiles_.WeightBytes(tile);
      if (placement_.state[i] == Tier::kNvme) transfers_.read_bytes += tiles_.StateBytes(tile);
    }
  }

  // Tiles in RAM of layers that wait for the norm are written with the commit.
  void AddWrite(int layer) {
    const bool writes_all = !placement_.WaitsForNorm(layer);
    for (int i = tiles_.first_tile(layer); i < tiles_.first_tile(layer + 1); ++i) {
      const Tile& tile = tiles_.tiles()[i];
      if (writes_all || placement_.weights[layer] == Tier::kNvme) {
        transfers_.write_bytes += tiles_.WeightBytes(tile);
      } else {
        resident_bytes_ += tiles_.WeightBytes(tile);
      }
      if (writes_all || placement_.state[i] == Tier::kNvme) {
        transfers_.write_bytes += tiles_.StateBytes(tile);
      } else {
        resident_bytes_ += tiles_.StateBytes(tile);
      }
    }
  }

  // Checksums and record go to two places in every folder.
  void AddCommit() {
    int64_t raw_bytes = 0;
    for (int i = tiles_.num_streamed_tiles(); i < tiles_.num_tiles(); ++i) {
      raw_bytes += tiles_.WeightBytes(tiles_.tiles()[i]);
    }
    transfers_.commit_bytes = raw_bytes + resident_bytes_ +
                              2 * TensorStore::SealBytes(tiles_, /*num_slots=*/1) +
                              2 * kCommitRecordBytes * tiles_.num_stripes();
    transfers_.write_bytes += transfers_.commit_bytes;
  }

  int64_t GradientBytes(int layer) const {
    return tiles_.layer_elems(layer) * gradient_bytes_per_elem_;
  }

  const Placement& placement_;
  const TileMap& tiles_;
  const int64_t gradient_bytes_per_elem_;
  const int64_t activation_bytes_;
  std::vector<int> reads_left_;  // by layer: from NVMe, in a step
  int64_t resident_bytes_ = 0;   // of RAM, that a commit writes: those of the layers so far
  bool loss_is_there_ = false;
  StepTransfers transfers_;
};

}  // namespace

StepTransfers CountTransfers(const StepSchedule& schedule, const WindowOptions& window,
                             const Placement& placement, const TileMap& tiles,
                             int64_t gradient_bytes_per_elem, int64_t activation_bytes) {
  return TransferCount(schedule, window, placement, tiles, gradient_bytes_per_elem,
                       activation_bytes)
      .transfers();
}

}  // namespace forebay
