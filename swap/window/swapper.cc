#include "forebay/swap/window/swapper.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/window/layer_pieces.h"

namespace forebay {

Swapper::Swapper(const Placement& placement, TensorStore* store, TileUpdater* updater)
    : store_(store), updater_(updater), update_times_(placement.update_times) {
  due_.reserve(static_cast<size_t>(store->tiles().num_streamed_layers()));
}

Swapper::~Swapper() = default;

int64_t Swapper::WindowBytes(const WindowOptions& options, const TileMap& tiles) {
  const WindowShape shape = WindowShapeOf(options, tiles);
  return options.num_block_buffers * shape.block_bytes +
         options.num_large_buffers * shape.large_bytes;
}

absl::StatusOr<std::unique_ptr<Swapper>> Swapper::Create(const WindowOptions& options,
                                                         const Placement& placement,
                                                         TensorStore* store, TileUpdater* updater,
                                                         MemoryBudget* budget, Device* device) {
  FOREBAY_CHECK(options.num_block_buffers >= 2 && options.num_large_buffers >= 1);
  FOREBAY_CHECK(store->has_commit());
  FOREBAY_RETURN_IF_ERROR(store->inventory().CheckRawLayersAreLast());
  const TileMap& tiles = store->tiles();
  FOREBAY_CHECK(static_cast<int>(placement.weights.size()) == tiles.num_streamed_layers());
  const WindowBuffers buffers = WindowBuffersOf(options, placement, tiles);
  std::unique_ptr<Swapper> swapper(new Swapper(placement, store, updater));
  FOREBAY_RETURN_IF_ERROR(swapper->MakeBuffers(options, buffers, budget, device));
  FOREBAY_RETURN_IF_ERROR(swapper->ReadResidentLayers(buffers));
  FOREBAY_ASSIGN_OR_RETURN(swapper->window_,
                           LayerWindow::Create(buffers, store->inventory(), swapper.get()));
  return swapper;
}

absl::Status Swapper::MakeBuffers(const WindowOptions& options, const WindowBuffers& buffers,
                                  MemoryBudget* budget, Device* device) {
  const TileMap& tiles = store_->tiles();
  const WindowShape shape = WindowShapeOf(options, tiles);
  lent_pieces_.resize(static_cast<size_t>(buffers.num_layers()));
  int max_tiles = 0;
  for (int layer = 0; layer < buffers.num_layers(); ++layer) {
    max_tiles = std::max(max_tiles, tiles.first_tile(layer + 1) - tiles.first_tile(layer));
    in_pieces_.push_back(buffers.ClassOf(layer) == BufferClass::kLarge &&
                         IsInPieces(options, tiles, layer));
  }
  for (int buffer = 0; buffer < buffers.num_buffers(); ++buffer) {
    const BufferClass buffer_class = buffers[buffer].buffer_class;
    const bool resident = buffer_class == BufferClass::kResident;
    const int64_t bytes = resident ? LayerWeightBytes(tiles, buffers[buffer].layer)
                          : buffer_class == BufferClass::kBlock ? shape.block_bytes
                                                                : shape.large_bytes;
    Backing& backing = backing_.emplace_back();
    FOREBAY_ASSIGN_OR_RETURN(
        backing.memory,
        TransferBuffer::Create(store_, budget, resident ? "resident weights" : "weights window",
                               bytes, tiles.max_weight_bytes(), device));
    backing.ops = std::make_unique<IoOp[]>(static_cast<size_t>(max_tiles));
    if (buffer_class == BufferClass::kLarge && options.piece_elems > 0) {
      backing.pieces =
          std::make_unique<LayerPieces>(store_, options.piece_elems, backing.memory.bytes());
    }
  }
  return absl::OkStatus();
}

absl::Status Swapper::ReadResidentLayers(const WindowBuffers& buffers) {
  absl::Status status;
  for (int buffer = 0; buffer < buffers.num_buffers(); ++buffer) {
    if (buffers[buffer].buffer_class != BufferClass::kResident) continue;
    StartRead(buffer, buffers[buffer].layer, /*urgent=*/true);
    status.Update(FinishRead(buffer, buffers[buffer].layer, /*is_used=*/true));
  }
  return status;
}

std::span<std::byte> Swapper::WeightsIn(int buffer, int layer) const {
  return backing_[buffer].memory.bytes().first(
      static_cast<size_t>(LayerWeightBytes(store_->tiles(), layer)));
}

LayerPieces* Swapper::PiecesIn(int buffer, int layer) const {
  return in_pieces_[static_cast<size_t>(layer)] ? backing_[buffer].pieces.get() : nullptr;
}

absl::Status Swapper::AtLayer(const absl::Status& status, std::string_view doing, int layer) const {
  if (status.ok()) return status;
  return Annotate(status, fmt::format("{} '{}'", doing, store_->inventory().layers()[layer].name));
}

// ---- The window's thread

void Swapper::StartRead(int buffer, int layer, bool urgent) {
  Backing& backing = backing_[buffer];
  const IoClass io_class = urgent ? IoClass::kDemand : IoClass::kPrefetch;
  if (LayerPieces* const pieces = PiecesIn(buffer, layer); pieces != nullptr) {
    return pieces->Start(layer, io_class);
  }
  const TileMap& tiles = store_->tiles();
  const std::span<std::byte> weights = WeightsIn(buffer, layer);
  const int first_tile = tiles.first_tile(layer);
  backing.num_reads = tiles.first_tile(layer + 1) - first_tile;
  for (int i = 0; i < backing.num_reads; ++i) {
    const Tile& tile = tiles.tiles()[first_tile + i];
    const auto offset = static_cast<size_t>(tile.first_elem * WeightBytesPerElem(tiles.layout()));
    const auto bytes = static_cast<size_t>(tiles.WeightBytes(tile));
    store_->StartReadWeights(first_tile + i, weights.subspan(offset, bytes), io_class,
                             backing.ops[i]);
  }
}

absl::Status Swapper::FinishRead(int buffer, int layer, bool is_used) {
  Backing& backing = backing_[buffer];
  if (LayerPieces* const pieces = PiecesIn(buffer, layer); pieces != nullptr) {
    if (!is_used) pieces->Drop();
    return absl::OkStatus();  // whoever uses a piece waits for it
  }
  const ActivityScope scope(Activity::kReadWeights);
  absl::Status status;
  const int num_reads = std::exchange(backing.num_reads, 0);
  for (int i = 0; i < num_reads; ++i) status.Update(store_->engine().Wait(backing.ops[i]));
  for (int i = 0; is_used && status.ok() && i < num_reads; ++i) {
    status = store_->VerifyWeights(store_->tiles().first_tile(layer) + i, backing.ops[i].buffer);
  }
  return AtLayer(status, "reading the weights of", layer);
}

bool Swapper::UpdateIsDue(int layer) const {
  return updater_ != nullptr && updater_->UpdateIsDue(layer);
}

absl::Status Swapper::Update(int buffer, int layer) {
  FOREBAY_RETURN_IF_ERROR(FinishWriteBack(buffer, layer));  // of the step before
  const ActivityScope scope(Activity::kUpdate);
  if (LayerPieces* const pieces = PiecesIn(buffer, layer); pieces != nullptr) {
    return AtLayer(pieces->Update(updater_), "updating", layer);
  }
  // Even if the update fails: some of its writes may be in flight.
  backing_[buffer].in_write_back = true;
  return AtLayer(updater_->UpdateLayer(layer, WeightsIn(buffer, layer)), "updating", layer);
}

absl::Status Swapper::FinishWriteBack(int buffer, int layer) {
  if (!std::exchange(backing_[buffer].in_write_back, false)) return absl::OkStatus();
  const ActivityScope scope(Activity::kWrite);
  return AtLayer(updater_->AwaitWriteBack(layer), "writing back", layer);
}

absl::Status Swapper::StageDueLayers() {
  due_.clear();
  // Layers that lie in a buffer first, before others push them out.
  for (const bool in_buffer : {true, false}) {
    for (int layer = 0; layer < window_->buffers().num_layers(); ++layer) {
      if ((window_->buffers().Find(layer) >= 0) == in_buffer && UpdateIsDue(layer)) {
        due_.push_back(layer);
      }
    }
  }
  return window_->StageAll(due_);
}

absl::Status Swapper::WriteResidentLayers() {
  const WindowBuffers& buffers = window_->buffers();
  for (int buffer = 0; buffer < buffers.num_buffers(); ++buffer) {
    if (updater_ == nullptr || buffers[buffer].buffer_class != BufferClass::kResident) continue;
    const int layer = buffers[buffer].layer;
    backing_[buffer].in_write_back = true;
    const ActivityScope scope(Activity::kWrite);
    FOREBAY_RETURN_IF_ERROR(
        AtLayer(updater_->WriteDeferred(layer, WeightsIn(buffer, layer)), "writing", layer));
  }
  return absl::OkStatus();
}

// ---- The caller

absl::StatusOr<std::span<const std::byte>> Swapper::Acquire(int layer) {
  FOREBAY_RETURN_IF_ERROR(FailureOfPieces());
  FOREBAY_ASSIGN_OR_RETURN(const int buffer, window_->Acquire(layer));
  LayerPieces* const pieces = PiecesIn(buffer, layer);
  lent_pieces_[static_cast<size_t>(layer)] = pieces;
  return pieces == nullptr ? WeightsIn(buffer, layer) : std::span<const std::byte>();
}

absl::Status Swapper::FailureOfPieces() const {
  for (const Backing& backing : backing_) {
    if (backing.pieces != nullptr) FOREBAY_RETURN_IF_ERROR(backing.pieces->failure());
  }
  return absl::OkStatus();
}

WindowStats Swapper::stats() const {
  WindowStats stats = window_->stats();
  for (const Backing& backing : backing_) {
    if (backing.pieces != nullptr) {
      stats.waits[Activity::kReadWeights] += backing.pieces->waited_s();
    }
  }
  return stats;
}

absl::Status Swapper::ApplyAllUpdates(absl::FunctionRef<void()> meanwhile) {
  // Whoever asks for it is about to commit, perhaps what cannot be read.
  FOREBAY_RETURN_IF_ERROR(FailureOfPieces());
  const auto apply = [this] {
    absl::Status status = StageDueLayers();
    if (status.ok()) status = WriteResidentLayers();
    const WindowBuffers& buffers = window_->buffers();
    for (int buffer = 0; buffer < buffers.num_buffers(); ++buffer) {
      status.Update(FinishWriteBack(buffer, buffers[buffer].layer));
    }
    return status;
  };
  return window_->Between(apply, meanwhile);
}

void Swapper::ForgetUpdatedOutside() {
  const WindowBuffers& buffers = window_->buffers();
  window_->Forget([&](int layer) {
    return update_times_[layer] != UpdateTime::kOnRead &&
           buffers.ClassOf(layer) != BufferClass::kResident;
  });
}

std::vector<std::span<std::byte>> Swapper::ResidentWeights() const {
  const WindowBuffers& buffers = window_->buffers();
  std::vector<std::span<std::byte>> weights(static_cast<size_t>(buffers.num_layers()));
  for (int layer = 0; layer < buffers.num_layers(); ++layer) {
    if (buffers.ClassOf(layer) != BufferClass::kResident) continue;
    weights[static_cast<size_t>(layer)] = WeightsIn(buffers.Find(layer), layer);
  }
  return weights;
}

absl::Status Swapper::RestoreResident(int layer) {
  return window_->Between([this, layer] {
    const int buffer = window_->buffers().Find(layer);
    StartRead(buffer, layer, /*urgent=*/true);
    return FinishRead(buffer, layer, /*is_used=*/true);
  });
}

}  // namespace forebay
