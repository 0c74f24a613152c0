#include "forebay/swap/window/step_transfers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "forebay/base/check.h"
#include "forebay/step/held_pieces.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/piece_cut.h"

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
    is_read_.clear();
    size_t num_released = 0;
    const auto release = [&] { buffers_.Release(buffers_.Find(releases_[num_released++])); };
    for (const int layer : accesses_) {
      while (buffers_.Choose(layer) < 0) {
        FOREBAY_CHECK(num_released < releases_.size());  // it holds more than the window has
        release();
      }
      is_read_.push_back(buffers_.Find(layer) < 0);
      if (is_read_.back()) ++reads_[layer];
      buffers_.Take(buffers_.Choose(layer), layer);
    }
    while (num_released < releases_.size()) release();
    Forget();
  }

  const std::vector<int>& reads() const { return reads_; }
  // Whether each access of the last step found its layer in no buffer.
  const std::vector<bool>& is_read() const { return is_read_; }

 private:
  // As the swapper does between steps: ForgetUpdatedOutside.
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
  std::vector<bool> is_read_;  // the same, by access
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

// The bytes read of a layer that is lent in pieces (layer_pieces.h): by its accesses, by updates on
// the way in, and by passes of whoever computes over all its pieces.
class PieceReads {
 public:
  PieceReads(const TileMap& tiles, int layer, int64_t piece_elems)
      : tiles_(tiles), layer_(layer), cut_(PieceCut::Of(tiles, layer, piece_elems)) {}

  // The buffer had another layer.
  int64_t Start() {
    held_ = {};
    return TakeFirst();
  }
  int64_t TakeAll() {
    int64_t bytes = 0;
    for (int piece = 0; piece < cut_.num_pieces; ++piece) bytes += Get(piece);
    return bytes;
  }
  int64_t Update() {
    const int64_t bytes = TakeAll();
    return bytes + TakeFirst();
  }
  int64_t GetLast() { return Get(cut_.num_pieces - 1); }

 private:
  int64_t Get(int piece) {
    const int64_t bytes = Take(piece);
    return piece + 1 < cut_.num_pieces ? bytes + Take(piece + 1) : bytes;
  }
  int64_t TakeFirst() { return Take(0) + Take(1); }
  int64_t Take(int piece) {
    if (!held_.Take(piece)) return 0;
    const int64_t first = piece * cut_.piece_elems;
    const int64_t elems = std::min(cut_.piece_elems, tiles_.layer_elems(layer_) - first);
    return elems * WeightBytesPerElem(tiles_.layout());
  }

  const TileMap& tiles_;
  const int layer_;
  const PieceCut cut_;
  HeldPieces held_;
};

// Walks the operations and adds up what each moves.
class TransferCount {
 public:
  TransferCount(const StepSchedule& schedule, const WindowOptions& window,
                const Placement& placement, const TileMap& tiles, int64_t gradient_bytes_per_elem,
                int64_t activation_bytes)
      : window_(window),
        placement_(placement),
        tiles_(tiles),
        gradient_bytes_per_elem_(gradient_bytes_per_elem),
        activation_bytes_(activation_bytes),
        trace_(schedule, window, placement, tiles) {
    for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
      if (!IsInPieces(window, tiles, layer) || placement.weights[layer] == Tier::kHost) continue;
      in_pieces_.emplace(layer, PieceReads(tiles, layer, window.piece_elems));
    }
    // The first step finds the window empty. What it leaves there depends on the schedule alone, so
    // that from the second on all are alike.
    CountStep(schedule);
    CountStep(schedule);
  }

  const StepTransfers& transfers() const { return transfers_; }

 private:
  void CountStep(const StepSchedule& schedule) {
    trace_.RunStep();
    transfers_ = {};
    num_reads_ = 0;
    loss_is_there_ = false;
    for (size_t i = 0; i < schedule.operations.size(); ++i) {
      const Operation& operation = schedule.operations[i];
      is_updated_on_read_ =
          i + 1 < schedule.operations.size() &&
          schedule.operations[i + 1] == Operation{OperationKind::kUpdate, operation.layer};
      Book(operation, [&] { Add(operation); });
      if (operation.kind != OperationKind::kLossAndGradient) continue;
      loss_is_there_ = true;
      Book(operation, [&] { AddPassOverLent(); });  // for the gradient of the input
    }
  }

  // Whatever `add` adds is of the operation's part of the step.
  template <typename Add>
  void Book(const Operation& operation, const Add& add) {
    const TransferBytes before = {transfers_.read_bytes, transfers_.write_bytes};
    add();
    TransferBytes& part = PartOf(operation);
    part.read += transfers_.read_bytes - before.read;
    part.write += transfers_.write_bytes - before.write;
  }

  void Add(const Operation& operation) {
    AddPieces(operation);
    switch (operation.kind) {
      case OperationKind::kRead:
        AddRead(operation.layer);
        break;
      case OperationKind::kRelease:
        lent_in_pieces_.erase(operation.layer);
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
    const bool is_forward = !loss_is_there_ || operation.kind == OperationKind::kCommit;
    return is_forward ? transfers_.forward : transfers_.backward;
  }

  void AddRead(int layer) {
    const bool is_read = trace_.is_read()[static_cast<size_t>(num_reads_++)];
    const auto pieces = in_pieces_.find(layer);
    if (pieces == in_pieces_.end()) {
      if (is_read) transfers_.read_bytes += LayerWeightBytes(tiles_, layer);
      return;
    }
    lent_in_pieces_.insert(layer);
    if (is_read) transfers_.read_bytes += pieces->second.Start();
    // Before somebody has it.
    if (is_updated_on_read_) transfers_.read_bytes += pieces->second.Update();
    if (window_.copies_pieces) transfers_.read_bytes += pieces->second.TakeAll();
  }

  void AddPassOverLent() {
    if (window_.copies_pieces) return;
    for (const int layer : lent_in_pieces_) {
      transfers_.read_bytes += in_pieces_.at(layer).TakeAll();
    }
  }

  // The passes of model/decoder_compute_pieces.cc over layers that are lent in pieces.
  void AddPieces(const Operation& operation) {
    if (window_.copies_pieces) return;
    const auto own = in_pieces_.find(operation.layer);
    switch (operation.kind) {
      case OperationKind::kForward:
      case OperationKind::kHand:
        if (lent_in_pieces_.contains(operation.layer)) {
          transfers_.read_bytes += own->second.TakeAll();
        }
        break;
      case OperationKind::kLossAndGradient:
        if (own != in_pieces_.end()) transfers_.read_bytes += own->second.GetLast();  // the norm
        AddPassOverLent();  // for the loss
        break;
      default:
        break;
    }
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
      }
      if (writes_all || placement_.state[i] == Tier::kNvme) {
        transfers_.write_bytes += tiles_.StateBytes(tile);
      }
    }
  }

  // What lives in memory, and is written for a commit.
  int64_t ResidentBytes() const {
    int64_t bytes = 0;
    for (int i = 0; i < tiles_.num_streamed_tiles(); ++i) {
      const Tile& tile = tiles_.tiles()[i];
      if (!placement_.WaitsForNorm(tile.layer)) continue;
      if (placement_.weights[tile.layer] != Tier::kNvme) bytes += tiles_.WeightBytes(tile);
      if (placement_.state[i] != Tier::kNvme) bytes += tiles_.StateBytes(tile);
    }
    return bytes;
  }

  // Checksums and record go to two places in every folder.
  void AddCommit() {
    int64_t raw_bytes = 0;
    for (int i = tiles_.num_streamed_tiles(); i < tiles_.num_tiles(); ++i) {
      raw_bytes += tiles_.WeightBytes(tiles_.tiles()[i]);
    }
    transfers_.commit_bytes = raw_bytes + ResidentBytes() +
                              2 * TensorStore::SealBytes(tiles_, /*num_slots=*/1) +
                              2 * kCommitRecordBytes * tiles_.num_stripes();
    transfers_.write_bytes += transfers_.commit_bytes;
  }

  int64_t GradientBytes(int layer) const {
    return tiles_.layer_elems(layer) * gradient_bytes_per_elem_;
  }

  const WindowOptions& window_;
  const Placement& placement_;
  const TileMap& tiles_;
  const int64_t gradient_bytes_per_elem_;
  const int64_t activation_bytes_;
  WindowTrace trace_;
  std::map<int, PieceReads> in_pieces_;  // by layer
  std::set<int> lent_in_pieces_;
  int64_t num_reads_ = 0;            // so far
  bool is_updated_on_read_ = false;  // the layer that is read
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
