#include "forebay/swap/session/tile_cache.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int kMostAhead = 8;  // tiles that copies forward are read ahead

absl::Status OfLayer(const absl::Status& status, std::string_view what, const TensorStore& store,
                     int tile) {
  const int layer = store.tiles().tiles()[tile].layer;
  return Annotate(status,
                  fmt::format("{} a tile of '{}'", what, store.inventory().layers()[layer].name));
}

}  // namespace

// ---- Life

TileCache::TileCache(TensorStore* store, TileHalf half)
    : store_(store),
      half_(half),
      states_(static_cast<size_t>(store->tiles().num_tiles())),
      has_commit_(store->has_commit()) {}

absl::StatusOr<std::unique_ptr<TileCache>> TileCache::Create(TensorStore* store, TileHalf half,
                                                             int num_cells, MemoryBudget* budget) {
  FOREBAY_CHECK(num_cells >= kLeastCells);
  const TileMap& tiles = store->tiles();
  const bool weights = half == TileHalf::kWeights;
  const int64_t cell_bytes = weights ? tiles.max_weight_bytes() : tiles.max_state_bytes();
  std::unique_ptr<TileCache> cache(new TileCache(store, half));
  if (cell_bytes > 0) {  // an optimizer may have no state
    FOREBAY_ASSIGN_OR_RETURN(
        cache->memory_,
        TransferBuffer::Create(store, budget, weights ? "tiles of weights" : "tiles of state",
                               num_cells * cell_bytes, cell_bytes));
  }
  cache->num_cells_ = num_cells;
  cache->max_dirty_ = num_cells / 2;
  cache->cells_ = std::make_unique<Cell[]>(static_cast<size_t>(num_cells));
  for (int i = 0; i < num_cells; ++i) {
    cache->cells_[i].memory = cache->memory_.bytes().subspan(static_cast<size_t>(i * cell_bytes),
                                                             static_cast<size_t>(cell_bytes));
  }
  return cache;
}

TileCache::~TileCache() {
  for (int i = 0; i < num_cells_; ++i) {
    FOREBAY_CHECK(cells_[i].pins == 0 && !cells_[i].busy);
    store_->engine().Wait(cells_[i].op).IgnoreError();  // what is not committed is lost anyway
  }
}

TileCache::Pin::~Pin() {
  if (cache_ != nullptr) cache_->Unpin(*cell_);
}

void TileCache::Unpin(Cell& cell) {
  const std::lock_guard lock(mutex_);
  --cell.pins;
  changed_.notify_all();
}

int64_t TileCache::HalfBytes(int tile) const {
  const Tile& spec = store_->tiles().tiles()[tile];
  return half_ == TileHalf::kWeights ? store_->tiles().WeightBytes(spec)
                                     : store_->tiles().StateBytes(spec);
}

std::span<std::byte> TileCache::BytesOf(const Cell& cell) const {
  return cell.memory.first(static_cast<size_t>(HalfBytes(cell.tile)));
}

TileCacheStats TileCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// ---- Cells

void TileCache::Assign(Cell& cell, int tile, bool ahead) {
  if (cell.tile >= 0) Clear(cell);
  cell.tile = tile;
  cell.ahead = ahead;
  cell.last_use = ++clock_;
  states_[tile].cell = static_cast<int>(&cell - cells_.get());
  stats_.resident_bytes += HalfBytes(tile);
  stats_.peak_resident_bytes = std::max(stats_.peak_resident_bytes, stats_.resident_bytes);
}

void TileCache::Clear(Cell& cell) {
  FOREBAY_CHECK(cell.pins == 0 && !cell.busy);
  if (cell.tile >= 0) {
    states_[cell.tile].cell = -1;
    stats_.resident_bytes -= HalfBytes(cell.tile);
  }
  if (cell.dirty) --num_dirty_;
  cell.dirty = false;
  cell.tile = -1;
  cell.state = State::kEmpty;
}

// A cell whose tile may go: an empty one, else the one whose tile was used longest ago, of those
// that were read ahead as the last resort and only with `even_if_ahead`. nullptr: none may go now.
TileCache::Cell* TileCache::FindRoom(bool even_if_ahead) {
  Cell* chosen = nullptr;
  for (int i = 0; i < num_cells_; ++i) {
    Cell& cell = cells_[i];
    if (cell.busy || cell.pins > 0 || cell.dirty) continue;
    if (cell.state == State::kEmpty) return &cell;
    if (cell.state != State::kReady || (cell.ahead && !even_if_ahead)) continue;
    const auto worth = [](const Cell& of) { return std::pair(of.ahead, of.last_use); };
    if (chosen == nullptr || worth(cell) < worth(*chosen)) chosen = &cell;
  }
  return chosen;
}

// Without the lock.
void TileCache::StartFilling(Cell& cell, bool zeros, IoClass io_class) {
  const std::span<std::byte> bytes = BytesOf(cell);
  if (zeros) {
    std::ranges::fill(bytes, std::byte{0});  // of no bytes where there is no state
  } else if (half_ == TileHalf::kWeights) {
    store_->StartReadWeights(cell.tile, bytes, io_class, cell.op);
  } else {
    store_->StartReadState(cell.tile, bytes, io_class, cell.op);
  }
}

// Leaves the cell ready, or reading.
void TileCache::Fill(Lock& lock, Cell& cell, bool zeros, IoClass io_class) {
  cell.busy = true;
  cell.state = State::kReading;
  if (!zeros) {
    ++stats_.reads;
    stats_.read_bytes += HalfBytes(cell.tile);
  }
  lock.unlock();
  StartFilling(cell, zeros, io_class);
  lock.lock();
  cell.busy = false;
  if (zeros) cell.state = State::kReady;
  changed_.notify_all();
}

// Waits for the transfer of a cell that is not busy. Of a read: its error. Of a write: the first
// error of any.
absl::Status TileCache::Finish(Lock& lock, Cell& cell) {
  const bool reading = cell.state == State::kReading;
  FOREBAY_CHECK(!cell.busy && (reading || cell.state == State::kWriting));
  cell.busy = true;
  const int tile = cell.tile;
  lock.unlock();
  absl::Status status = store_->engine().Wait(cell.op);
  if (status.ok() && reading) {
    status = half_ == TileHalf::kWeights ? store_->VerifyWeights(tile, BytesOf(cell))
                                         : store_->VerifyState(tile, BytesOf(cell));
  } else if (status.ok()) {
    if (half_ == TileHalf::kWeights) store_->MarkWeightsWritten(tile);
    if (half_ == TileHalf::kState) store_->MarkStateWritten(tile);
  }
  if (!status.ok()) status = OfLayer(status, reading ? "reading" : "writing", *store_, tile);
  lock.lock();
  cell.busy = false;
  changed_.notify_all();
  cell.state = State::kReady;
  if (reading && !status.ok()) {
    cell.state = State::kFailed;
    cell.error = status;
    if (cell.pins == 0) Clear(cell);
  }
  if (reading) return status;
  if (status.ok()) {
    states_[tile].placed = true;
  } else {
    cell.dirty = true;  // the value is here alone
    ++num_dirty_;
    failure_.Update(status);
  }
  return failure_;
}

// Waits until something changes that may have made room.
absl::Status TileCache::AwaitRoom(Lock& lock) {
  Cell* moving = nullptr;
  bool will_change = false;
  for (int i = 0; i < num_cells_; ++i) {
    Cell& cell = cells_[i];
    will_change |= cell.busy || cell.pins > 0;
    if (cell.busy || (cell.state != State::kReading && cell.state != State::kWriting)) continue;
    const auto worth = [](const Cell& of) {
      return std::pair(!of.op.pending(), of.state == State::kWriting);
    };
    if (moving == nullptr || worth(cell) > worth(*moving)) moving = &cell;
  }
  if (moving != nullptr) {
    const bool reading = moving->state == State::kReading;
    const absl::Status status = Finish(lock, *moving);
    return reading ? absl::OkStatus() : status;  // the error of a read is for who wants the tile
  }
  if (!will_change) {
    FOREBAY_CHECK(!failure_.ok());  // all tiles wait to be written, and none can be
    return failure_;
  }
  changed_.wait(lock);
  return absl::OkStatus();
}

// A tile is pinned by who waits for it, so that no other takes its cell once it is there.
absl::StatusOr<TileCache::Pin> TileCache::Take(int tile, Use use) {
  Lock lock(mutex_);
  if (use != Use::kRead) FOREBAY_RETURN_IF_ERROR(LimitDirty(lock, tile));
  while (states_[tile].cell < 0) {
    if (Cell* room = FindRoom(/*even_if_ahead=*/true)) {
      Assign(*room, tile, /*ahead=*/true);
      Fill(lock, *room, use == Use::kReplace || IsZero(tile), IoClass::kDemand);
    } else {
      FOREBAY_RETURN_IF_ERROR(AwaitRoom(lock));
    }
  }
  Cell& cell = cells_[states_[tile].cell];
  ++cell.pins;
  while (cell.state != State::kReady && !(cell.state == State::kWriting && use == Use::kRead)) {
    if (cell.state == State::kFailed) {
      absl::Status error = cell.error;
      if (--cell.pins == 0) Clear(cell);
      changed_.notify_all();
      return error;
    }
    if (cell.busy) {
      changed_.wait(lock);
    } else {
      Finish(lock, cell).IgnoreError();  // the cell has it
    }
  }
  if (!std::exchange(cell.ahead, false)) ++stats_.hits;
  cell.last_use = ++clock_;
  if (use != Use::kRead) {
    if (!std::exchange(cell.dirty, true)) ++num_dirty_;
    states_[tile].changed = true;
  }
  return Pin(this, &cell, BytesOf(cell));
}

absl::StatusOr<TileCache::Pin> TileCache::Read(int tile) {
  return Take(tile, Use::kRead);
}

absl::StatusOr<TileCache::Pin> TileCache::Change(int tile, bool replaces) {
  return Take(tile, replaces ? Use::kReplace : Use::kChange);
}

bool TileCache::ReadAhead(int tile, IoClass io_class) {
  Lock lock(mutex_);
  if (states_[tile].cell >= 0 || IsZero(tile)) return true;
  Cell* room = FindRoom(/*even_if_ahead=*/false);
  if (room == nullptr) return false;
  Assign(*room, tile, /*ahead=*/true);
  Fill(lock, *room, /*zeros=*/false, io_class);
  return true;
}

// ---- Writing

// A write has begun when this returns, unless failure_ says why not.
void TileCache::StartWrite(Lock& lock, Cell& cell) {
  FOREBAY_CHECK(!cell.busy && cell.state == State::kReady);
  if (std::exchange(cell.dirty, false)) --num_dirty_;
  cell.busy = true;
  cell.state = State::kWriting;
  states_[cell.tile].same_in_both = false;
  const int tile = cell.tile;
  lock.unlock();
  // For each write a round of its own, as a tile may be written again before the commit.
  const absl::Status status = store_->BeginWriting();
  if (status.ok() && half_ == TileHalf::kWeights) {
    store_->StartWriteWeights(tile, BytesOf(cell), cell.op);
  } else if (status.ok()) {
    store_->StartWriteState(tile, BytesOf(cell), cell.op);
  }
  lock.lock();
  cell.busy = false;
  if (status.ok()) {
    stats_.write_bytes += HalfBytes(tile);
  } else {
    cell.state = State::kReady;
    cell.dirty = true;
    ++num_dirty_;
    failure_.Update(status);
  }
  changed_.notify_all();
}

// Makes room for `tile` among those that wait to be written.
absl::Status TileCache::LimitDirty(Lock& lock, int tile) {
  while (failure_.ok() && num_dirty_ >= max_dirty_) {
    const int index = states_[tile].cell;
    if (index >= 0 && cells_[index].dirty) break;
    Cell* oldest = nullptr;
    for (int i = 0; i < num_cells_; ++i) {
      Cell& cell = cells_[i];
      if (!cell.dirty || (oldest != nullptr && oldest->last_use < cell.last_use)) continue;
      oldest = &cell;
    }
    StartWrite(lock, *oldest);
  }
  return failure_;
}

absl::Status TileCache::WriteBack(int tile) {
  Lock lock(mutex_);
  const int index = states_[tile].cell;
  if (failure_.ok() && index >= 0 && cells_[index].dirty) StartWrite(lock, cells_[index]);
  return failure_;
}

// Starts to write a tile that was not changed to the slot that lacks it.
absl::Status TileCache::Copy(int tile) {
  FOREBAY_ASSIGN_OR_RETURN(const Pin pin, Read(tile));
  Lock lock(mutex_);
  // It may be under way already, where a commit failed before.
  if (pin.cell_->state == State::kReady) StartWrite(lock, *pin.cell_);
  stats_.copied_bytes += HalfBytes(tile);
  return failure_;
}

absl::Status TileCache::AwaitWrites(Lock& lock) {
  for (int i = 0; i < num_cells_; ++i) {
    Cell& cell = cells_[i];
    while (cell.state == State::kWriting) {
      if (cell.busy) {
        changed_.wait(lock);
      } else {
        Finish(lock, cell).IgnoreError();  // in failure_
      }
    }
  }
  return failure_;
}

absl::Status TileCache::CompleteSlot() {
  const int num_tiles = store_->tiles().num_tiles();
  {
    Lock lock(mutex_);
    for (int i = 0; i < num_cells_ && failure_.ok(); ++i) {
      if (cells_[i].dirty) StartWrite(lock, cells_[i]);
    }
    FOREBAY_RETURN_IF_ERROR(failure_);
    for (int tile = 0; tile < num_tiles; ++tile) KeepWhereItIs(tile);
  }
  int next_ahead = 0;
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (!NeedsCopy(tile)) continue;
    next_ahead = std::max(next_ahead, tile);
    while (next_ahead < std::min(num_tiles, tile + kMostAhead) &&
           (!NeedsCopy(next_ahead) || ReadAhead(next_ahead, IoClass::kPrefetch))) {
      ++next_ahead;
    }
    FOREBAY_RETURN_IF_ERROR(Copy(tile));
  }
  Lock lock(mutex_);
  return AwaitWrites(lock);
}

bool TileCache::NeedsCopy(int tile) const {
  const std::lock_guard lock(mutex_);
  return !states_[tile].placed && !states_[tile].changed;
}

// With the lock: where the slot holds the committed value of a tile already, nothing is to be done.
void TileCache::KeepWhereItIs(int tile) {
  TileState& state = states_[tile];
  const bool stays = has_commit_ && (store_->num_slots() == 1 || state.same_in_both);
  if (state.placed || state.changed || !stays) return;
  if (half_ == TileHalf::kWeights) store_->KeepWeights(tile);
  if (half_ == TileHalf::kState) store_->KeepState(tile);
  state.placed = true;
  stats_.kept_bytes += HalfBytes(tile);
}

absl::Status TileCache::write_failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void TileCache::OnCommitted() {
  const std::lock_guard lock(mutex_);
  for (TileState& state : states_) {
    state.same_in_both = has_commit_ && !state.changed;
    state.changed = false;
    state.placed = false;
  }
  has_commit_ = true;
}

void TileCache::Discard() {
  Lock lock(mutex_);
  for (int i = 0; i < num_cells_; ++i) {
    Cell& cell = cells_[i];
    if (cell.state == State::kReading || cell.state == State::kWriting) {
      Finish(lock, cell).IgnoreError();
    }
    Clear(cell);
  }
  for (TileState& state : states_) {
    state.changed = false;
    state.placed = false;
  }
  failure_ = absl::OkStatus();
}

}  // namespace forebay
