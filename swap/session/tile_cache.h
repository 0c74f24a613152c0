// Tiles in memory on their way between a store and the values that are leased from it
// (tensor_session.h): one cache for the weights of tiles, one for their state. What was read is
// kept as long as there is room, since tensors share tiles; what was changed is written when it is
// asked for, or when too many tiles are waiting to be.
//
// Not for the training loop of train/, which knows what it needs next (swapper.h).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/tiles/tile_values.h"

namespace forebay {

// Tiles here are halves of tiles: a cache has the weights, or the state.
struct TileCacheStats {
  int64_t reads = 0;  // tiles read, in anticipation too
  int64_t hits = 0;   // uses of a tile that had been used before and was still there
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;   // copies forward included
  int64_t copied_bytes = 0;  // of them: unchanged tiles that had to be copied for a commit
  int64_t kept_bytes = 0;    // of unchanged tiles for which a commit found nothing to do
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;
};

// Any thread may read. One thread, the writer, makes all calls that change or write.
//
// Waiting ends: who waits here holds no pin but of the tile that is waited for, a pin is held for a
// transfer and a copy and no longer, and there is always a tile that is not waiting to be written
// (`max_dirty_`), so that readers find room without the writer's help.
class TileCache {
  struct Cell;

 public:
  static constexpr int kLeastCells = 2;

  // Of memory: `num_cells` tiles, at least kLeastCells. Everything pointed to must outlive the
  // cache. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<TileCache>> Create(TensorStore* store, TileHalf half,
                                                           int num_cells, MemoryBudget* budget);
  ~TileCache();

  // A tile that stays while this lives. Move-only.
  class Pin {
   public:
    Pin(Pin&& other) noexcept
        : cache_(std::exchange(other.cache_, nullptr)), cell_(other.cell_), bytes_(other.bytes_) {}
    Pin& operator=(Pin&&) = delete;
    ~Pin();
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class TileCache;
    Pin(TileCache* cache, Cell* cell, std::span<std::byte> bytes)
        : cache_(cache), cell_(cell), bytes_(bytes) {}
    TileCache* cache_;
    Cell* cell_;
    std::span<std::byte> bytes_;
  };

  // ---- Any thread, without a pin of this cache

  // The newest value of a tile, verified; zeros where there was never one. StorageError,
  // CorruptError.
  absl::StatusOr<Pin> Read(int tile);
  // Starts reading a tile if it is not there and there is room that nobody else is about to use.
  // False: there is none. Never waits.
  bool ReadAhead(int tile, IoClass io_class);

  // ---- The writer

  // As Read, to be changed by the writer while others read parts that it does not touch.
  // `replaces`: all of the tile but padding will be, so that it is not read; zeros then. May wait
  // for room until others are written.
  absl::StatusOr<Pin> Change(int tile, bool replaces);
  // Starts writing a tile where it was changed and lies here. Requires: no pin of it is being
  // changed.
  absl::Status WriteBack(int tile);
  // Has every tile in the slot that is written to: writes what was changed, and copies what was
  // not, where the slot does not hold it already. After the error of a read it may be called again.
  absl::Status CompleteSlot();
  // The first error of a write that was waited for since the last Discard: nothing is written after
  // it.
  absl::Status write_failure() const;
  // The store has committed what CompleteSlot left.
  void OnCommitted();
  // Forgets all changes since the last commit, and the first error. The caller then has the store
  // forget them as well. Requires: nobody uses the cache meanwhile.
  void Discard();

  TileCacheStats stats() const;

 private:
  enum class State : uint8_t { kEmpty, kReading, kFailed, kReady, kWriting };
  // Why a tile is taken.
  enum class Use : uint8_t { kRead, kChange, kReplace };
  using Lock = std::unique_lock<std::mutex>;

  struct Cell {
    State state = State::kEmpty;
    int tile = -1;
    int pins = 0;        // of those who wait for the tile, too
    bool busy = false;   // a thread works on it without the lock
    bool dirty = false;  // changed, and no write of it has begun
    bool ahead = false;  // read in anticipation, and not used yet
    int64_t last_use = 0;
    absl::Status error;  // of a read that failed
    IoOp op;
    std::span<std::byte> memory;
  };
  // The history of a tile since the last commit.
  struct TileState {
    int cell = -1;
    bool changed = false;
    // The slot that is written to has, or had before the tile was changed again, its newest value.
    bool placed = false;
    bool same_in_both = false;  // both slots hold what is committed
  };

  TileCache(TensorStore* store, TileHalf half);

  std::span<std::byte> BytesOf(const Cell& cell) const;
  absl::StatusOr<Pin> Take(int tile, Use use);
  Cell* FindRoom(bool even_if_ahead);
  void Assign(Cell& cell, int tile, bool ahead);
  void Clear(Cell& cell);
  // Has read or zeroed memory; the caller has made the cell busy and does not hold the lock.
  void StartFilling(Cell& cell, bool zeros, IoClass io_class);
  void Fill(Lock& lock, Cell& cell, bool zeros, IoClass io_class);
  absl::Status Finish(Lock& lock, Cell& cell);
  absl::Status AwaitRoom(Lock& lock);
  absl::Status AwaitWrites(Lock& lock);
  absl::Status LimitDirty(Lock& lock, int tile);
  void StartWrite(Lock& lock, Cell& cell);
  absl::Status Copy(int tile);
  bool NeedsCopy(int tile) const;
  void KeepWhereItIs(int tile);
  void Unpin(Cell& cell);
  bool IsZero(int tile) const { return !has_commit_ && !states_[tile].placed; }
  int64_t HalfBytes(int tile) const;

  TensorStore* const store_;
  const TileHalf half_;
  TransferBuffer memory_;
  int num_cells_ = 0;
  int max_dirty_ = 0;
  std::unique_ptr<Cell[]> cells_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // of any cell
  // All below, and the cells but for their memory: mutex_.
  std::vector<TileState> states_;
  bool has_commit_ = false;
  int num_dirty_ = 0;
  int64_t clock_ = 0;
  absl::Status failure_;  // the first of a write since the last Discard
  TileCacheStats stats_;
};

}  // namespace forebay
