// The write-backs of updated tiles: started by the update, checked and reported to the store when
// somebody waits.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "forebay/aio/engine.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

// Weights are awaited by any thread: the swapper's wants its buffer back while the training thread
// prepares a commit. The rest is thread-compatible. `store` must outlive it.
class TileWrites {
 public:
  explicit TileWrites(TensorStore* store);
  ~TileWrites();  // waits for what is under way
  TileWrites(const TileWrites&) = delete;
  TileWrites& operator=(const TileWrites&) = delete;

  // `buffer` is borrowed until the matching Await returns. `step` is for messages. Requires: the
  // last write of this tile's weights or state was awaited. Other threads find a write of weights
  // once StartWeights has returned.
  void StartWeights(int tile, std::span<std::byte> buffer, int64_t step);
  void StartState(int tile, std::span<std::byte> buffer, int64_t step);

  // Waits for the last write, if there was one, and tells the store that it is complete. A
  // StorageError names layer, step and tile, and is what every later call for the same tile
  // returns.
  absl::Status AwaitWeights(int tile);
  absl::Status AwaitState(int tile);
  // Waits for the writes of all tiles, and calls `meanwhile` behind each. The first error, after
  // all have ended.
  absl::Status AwaitAll(absl::FunctionRef<void()> meanwhile = [] {});

  // Whether the write is still under way.
  bool StateIsPending(int tile) const { return state_[tile].op.pending(); }
  bool WeightsArePending(int tile) const { return weights_[tile].op.pending(); }

 private:
  struct Write {
    IoOp op;
    int64_t step = kNone;
    absl::Status failure;
    bool has_waiter = false;  // of weights: `step` and `failure` are that thread's
  };
  static constexpr int64_t kNone = -1;
  // `completed`: whether the store is to be told. Requires: a write that nobody else awaits, and
  // that has not failed.
  absl::Status Await(Write& write, int tile, std::string_view what, bool& completed);

  TensorStore* const store_;
  std::mutex weights_mutex_;
  std::condition_variable weights_waited_for_;  // a waiter is done
  std::vector<Write> weights_;                  // by tile; but for `op`, under the lock
  std::vector<Write> state_;
};

}  // namespace forebay
