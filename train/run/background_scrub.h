// Verifies the committed state of a run on a thread of its own while training goes on
// (--scrub_every): damage is found while the step before is still whole, and not when a resume
// needs what is damaged.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/store/store_snapshot.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/run/trainer.h"

namespace forebay {

// One scrub goes once through all tiles. It gives way where the slot that it reads is to be written
// over, and goes on with the tiles that are left in what is committed next. It reads a tile at a
// time, behind all that the steps want of the disk, and then as long nothing. Owned by one thread.
class BackgroundScrub {
 public:
  // The memory of one tile, charged to `budget`. `every_steps`: from the step that a scrub began
  // with to the next one's; 0, and with one slot: never. Requires: a commit. `store` and `budget`
  // must outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<BackgroundScrub>> Create(int64_t every_steps,
                                                                 TensorStore* store,
                                                                 MemoryBudget* budget);
  ~BackgroundScrub();  // gives way
  BackgroundScrub(const BackgroundScrub&) = delete;
  BackgroundScrub& operator=(const BackgroundScrub&) = delete;

  // A step was committed: what is under way goes on with it, or a scrub begins that is due.
  void AfterCommit();
  // Ends its use of the store, but for what is left of one tile.
  void GiveWay();
  // CorruptError once damage of what is committed was found: what is damaged of which step.
  // `observer` gets a line about a scrub that has ended with none, and about damage of a step that
  // another one has followed by now, whose slot is written over next.
  absl::Status Report(TrainObserver& observer);
  // The same at the end of a session, once the scrub has given way: no later one tells of it.
  absl::Status End(TrainObserver& observer);

 private:
  BackgroundScrub(int64_t every_steps, TensorStore* store, HostBuffer memory);
  void Start();
  void Run();
  bool RestAndGoOn(double seconds);
  void TakeOver();
  void TakeDamage();

  const int64_t every_steps_;
  TensorStore* const store_;
  const HostBuffer memory_;
  std::thread thread_;
  std::atomic<bool> is_done_ = false;  // the thread, with what it may touch of the store

  std::mutex mutex_;
  std::condition_variable changed_;
  bool gives_way_ = false;  // mutex_

  // The thread's while it runs.
  std::unique_ptr<StoreSnapshot> snapshot_;
  int next_tile_ = 0;
  std::vector<TileDamage> damaged_;

  bool is_under_way_ = false;
  int64_t due_step_ = 0;  // the first that the next scrub may begin with
  int64_t first_step_ = 0;
  int64_t last_step_ = 0;  // that it has read of
  uint32_t slot_ = 0;      // of that
  // Not told yet. Several: behind damage the scrub may have gone on to its end.
  std::vector<std::string> lines_;
  absl::Status error_;
};

}  // namespace forebay
