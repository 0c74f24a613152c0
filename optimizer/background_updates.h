// Updates tiles on a thread of its own, outside of the swapper's window, read ahead in the order in
// which their gradients are handed over. There are two uses (swap/tiles/placement.h):
// - speculative layers are updated while the backward pass goes on, as soon as their gradient is
//   complete, before the global norm is known. Gradients wait in a ring of buffers, one of a tile
//   each (Begin);
// - delayed layers are updated with the gradients of the step before, which wait where
//   HeldGradients has them, as soon as the backward pass has used their weights (TakeHeld).
//
// Not for: deciding whether what was hoped for came true, and what then (offloaded_optimizer.h).
//
// The ring cannot deadlock: who waits for a buffer waits for an update, which waits for the
// transfers of its own tile and for write-backs that were started before.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/optimizer/staged_tiles.h"

namespace forebay {

// The public functions belong to the training thread, but for ReadEarly.
class BackgroundUpdates : public GradientSink {
 public:
  // Updates a tile in `buffer`, with `gradient`, and starts its write-backs. On the updates'
  // thread.
  using UpdateTile = std::function<absl::Status(int tile, const StagingBuffer& buffer,
                                                std::span<const std::byte> gradient)>;

  // `tiles`: in the order in which their gradients are handed over. `gradients`: buffers of a
  // tile's gradient each, two or more; none: TakeHeld, with the weights of all tiles staged.
  // `staged` is this object's from ReadEarly or Begin until End or Drop returns. `then`: tiles that
  // are updated elsewhere when all these are; they are read ahead already (StagedTiles::ReadEarly).
  // Everything pointed to must outlive it. EnvironmentError where no thread can be had.
  static absl::StatusOr<std::unique_ptr<BackgroundUpdates>> Create(
      std::vector<int> tiles, std::vector<std::span<std::byte>> gradients, StagedTiles* staged,
      UpdateTile update, std::span<const int> then = {});
  ~BackgroundUpdates() override;  // as Drop

  // Until Begin, PauseReading or Drop this object's thread reads what the first updates need,
  // behind what others prefetch. `staged` is this object's from here on. Any thread.
  void ReadEarly();
  // Behind ReadEarly: nothing more is read, and neither `staged` nor write-backs are looked at,
  // until ReadEarly or Begin.
  void PauseReading();
  // From here on what is taken is updated; until then, and after End, Drop or Decline, it is only
  // thrown away.
  void Begin();
  // The next `num_tiles` may be updated, with an empty `gradient`. Requires: Begin, no ring.
  void TakeHeld(int64_t num_tiles);
  // All that are left.
  void TakeAllHeld();
  // What is taken from here on is thrown away; what was taken before is still updated.
  void Decline();
  // Waits until all that was taken is updated; its write-backs may still be under way. The first
  // error. `all`: whether that is every tile. `meanwhile`: called some times a second.
  absl::Status End(
      bool& all, absl::FunctionRef<void()> meanwhile = [] {});
  // Waits for the update that is being made, and forgets the others.
  void Drop();

  std::span<const int> tiles() const { return tiles_; }
  // Of them, so many were taken since Begin.
  int64_t num_taken() const {
    const std::lock_guard lock(mutex_);
    return num_taken_;
  }
  // That Buffer took.
  double wait_s() const {
    const std::lock_guard lock(mutex_);
    return wait_s_;
  }

  absl::StatusOr<std::span<std::byte>> Buffer(int tile) override;
  void Take() override;

 private:
  BackgroundUpdates(std::vector<int> tiles, std::vector<std::span<std::byte>> gradients,
                    StagedTiles* staged, UpdateTile update, std::span<const int> then);
  enum class Command : uint8_t { kNone, kPause, kBegin, kEnd, kDrop, kQuit };
  using Lock = std::unique_lock<std::mutex>;

  void Run();
  void UpdateTaken(Lock& lock);
  void Obey(Lock& lock);
  void ReadWhileIdle(Lock& lock);
  bool MayUpdate() const {
    return num_updated_ < num_taken_ && failure_.ok() && command_ != Command::kDrop;
  }
  void Send(
      Command command, absl::FunctionRef<void()> meanwhile = [] {});
  std::span<std::byte> GradientAt(int64_t number) const {
    if (gradients_.empty()) return {};
    return gradients_[static_cast<size_t>(number) % gradients_.size()];
  }

  const std::vector<int> tiles_;
  const std::vector<std::span<std::byte>> gradients_;
  StagedTiles* const staged_;
  const UpdateTile update_;
  const std::span<const int> then_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;      // the updates' thread
  std::condition_variable progress_;  // the training thread
  Command command_ = Command::kNone;  // mutex_
  bool accepts_ = false;              // mutex_
  // mutex_: whether there may be something to read while no update can be made.
  enum class Reads : uint8_t { kNothing, kEarly, kFurther } reads_ = Reads::kNothing;
  int64_t num_taken_ = 0;    // mutex_
  int64_t num_updated_ = 0;  // mutex_
  double wait_s_ = 0;        // mutex_
  absl::Status failure_;     // mutex_: of an update; no further one is made
  std::thread thread_;
};

}  // namespace forebay
