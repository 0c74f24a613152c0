#include "forebay/train/run/background_scrub.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/base/trace.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<BackgroundScrub>> BackgroundScrub::Create(int64_t every_steps,
                                                                         TensorStore* store,
                                                                         MemoryBudget* budget) {
  HostBuffer memory;
  // The one slot of a store without another is written over as soon as it is committed.
  if (store->num_slots() == 1) every_steps = 0;
  if (every_steps > 0) {
    FOREBAY_ASSIGN_OR_RETURN(memory, HostBuffer::Create(budget, "verification beside the steps",
                                                        TensorStore::ScrubBytes(store->tiles())));
  }
  return std::unique_ptr<BackgroundScrub>(
      new BackgroundScrub(every_steps, store, std::move(memory)));
}

BackgroundScrub::BackgroundScrub(int64_t every_steps, TensorStore* store, HostBuffer memory)
    : every_steps_(every_steps),
      store_(store),
      memory_(std::move(memory)),
      due_step_(store->committed().step + every_steps) {}

BackgroundScrub::~BackgroundScrub() {
  GiveWay();
}

void BackgroundScrub::AfterCommit() {
  if (every_steps_ == 0) return;
  GiveWay();
  if (!error_.ok()) return;
  if (!is_under_way_) {
    if (store_->committed().step < due_step_) return;
    is_under_way_ = true;
    due_step_ = store_->committed().step + every_steps_;
    first_step_ = store_->committed().step;
    next_tile_ = 0;
  }
  Start();
}

void BackgroundScrub::Start() {
  gives_way_ = false;
  is_done_ = false;
  snapshot_ = std::make_unique<StoreSnapshot>(store_);
  last_step_ = snapshot_->step();
  slot_ = store_->committed_slot();
  absl::StatusOr<std::thread> thread = StartThread("verifying the run's state", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    snapshot_.reset();  // the next commit tries again
  }
}

void BackgroundScrub::Run() {
  NameThreadInTraces("scrub");
  Stopwatch watch;
  TraceScope trace("verify a tile, and rest");
  const auto goes_on = [&] {
    // Whoever has to stop for it should hear of it at once.
    if (!damaged_.empty()) return false;
    const bool rested = RestAndGoOn(watch.Seconds());
    watch.Restart();
    trace.Next();
    return rested;
  };
  next_tile_ = snapshot_->Scrub(next_tile_, memory_.bytes(), goes_on, damaged_);
  snapshot_.reset();
  is_done_.store(true, std::memory_order_release);
}

// False, and at once, where the scrub is to give way.
bool BackgroundScrub::RestAndGoOn(double seconds) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return gives_way_; });
}

void BackgroundScrub::GiveWay() {
  {
    const std::lock_guard lock(mutex_);
    gives_way_ = true;
  }
  changed_.notify_all();
  TakeOver();
}

// Waits for the thread to end, and takes its result.
void BackgroundScrub::TakeOver() {
  if (!thread_.joinable()) return;
  thread_.join();
  if (!damaged_.empty()) {
    TakeDamage();
  } else if (next_tile_ == store_->tiles().num_tiles()) {
    const TileMap& tiles = store_->tiles();
    lines_.push_back(fmt::format(
        "verified the run's state, {}, of {}: all of it is what was written",
        FormatBytes(tiles.weight_area_bytes() + tiles.state_area_bytes()),
        first_step_ == last_step_
            ? fmt::format("step {}", last_step_)
            : fmt::format("steps {} to {}, each part of the one that was committed then",
                          first_step_, last_step_)));
    is_under_way_ = false;
  }
}

void BackgroundScrub::TakeDamage() {
  const TileDamage damage = std::exchange(damaged_, {}).front();
  const std::string found = fmt::format(
      "verifying the run's state found a part of step {} that is damaged or cannot be "
      "read: {}",
      last_step_, damage.message);
  if (slot_ == store_->committed_slot()) {
    error_ = CorruptError(found);
    is_under_way_ = false;
    return;
  }
  lines_.push_back(fmt::format(
      "{}. Step {} was committed meanwhile, and the next is written over what is damaged: nothing "
      "is lost, but look at 'dmesg' and the drive's health (smartctl -a)",
      found, store_->committed().step));
  next_tile_ = damage.tile;
}

absl::Status BackgroundScrub::Report(TrainObserver& observer) {
  if (is_done_.load(std::memory_order_acquire)) TakeOver();
  for (const std::string& line : std::exchange(lines_, {})) observer.OnNote(line);
  return error_;
}

absl::Status BackgroundScrub::End(TrainObserver& observer) {
  GiveWay();
  return Report(observer);
}

}  // namespace forebay
