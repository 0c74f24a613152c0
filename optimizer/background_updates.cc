#include "forebay/optimizer/background_updates.h"

#include <chrono>

#include "forebay/base/activity.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/base/wait_meanwhile.h"

namespace forebay {
namespace {

constexpr std::chrono::milliseconds kSoon{1};

}  // namespace

BackgroundUpdates::BackgroundUpdates(std::vector<int> tiles,
                                     std::vector<std::span<std::byte>> gradients,
                                     StagedTiles* staged, UpdateTile update,
                                     std::span<const int> then)
    : tiles_(std::move(tiles)),
      gradients_(std::move(gradients)),
      staged_(staged),
      update_(std::move(update)),
      then_(then) {}

absl::StatusOr<std::unique_ptr<BackgroundUpdates>> BackgroundUpdates::Create(
    std::vector<int> tiles, std::vector<std::span<std::byte>> gradients, StagedTiles* staged,
    UpdateTile update, std::span<const int> then) {
  FOREBAY_CHECK(gradients.empty() || gradients.size() >= 2);
  std::unique_ptr<BackgroundUpdates> updates(new BackgroundUpdates(
      std::move(tiles), std::move(gradients), staged, std::move(update), then));
  FOREBAY_ASSIGN_OR_RETURN(updates->thread_, StartThread("updating beside the passes",
                                                         [raw = updates.get()] { raw->Run(); }));
  return updates;
}

BackgroundUpdates::~BackgroundUpdates() {
  if (!thread_.joinable()) return;
  Drop();
  {
    const std::lock_guard lock(mutex_);
    command_ = Command::kQuit;
  }
  wake_.notify_one();
  thread_.join();
}

// ---- The training thread

void BackgroundUpdates::Send(Command command, absl::FunctionRef<void()> meanwhile) {
  Lock lock(mutex_);
  command_ = command;
  wake_.notify_one();
  WaitMeanwhile(
      progress_, lock, [this] { return command_ == Command::kNone; }, meanwhile);
}

void BackgroundUpdates::ReadEarly() {
  {
    const std::lock_guard lock(mutex_);
    reads_ = Reads::kEarly;
  }
  wake_.notify_one();
}

void BackgroundUpdates::PauseReading() {
  Send(Command::kPause);
}

void BackgroundUpdates::Begin() {
  {
    const std::lock_guard lock(mutex_);
    FOREBAY_CHECK(num_taken_ == num_updated_);
    num_taken_ = num_updated_ = 0;
    accepts_ = failure_.ok();
  }
  Send(Command::kBegin);
}

void BackgroundUpdates::TakeHeld(int64_t num_tiles) {
  FOREBAY_CHECK(gradients_.empty());
  {
    const std::lock_guard lock(mutex_);
    if (!accepts_) return;
    num_taken_ += num_tiles;
    FOREBAY_CHECK(num_taken_ <= std::ssize(tiles_));
  }
  wake_.notify_one();
}

void BackgroundUpdates::TakeAllHeld() {
  int64_t num_left = 0;
  {
    const std::lock_guard lock(mutex_);
    num_left = std::ssize(tiles_) - num_taken_;
  }
  TakeHeld(num_left);
}

void BackgroundUpdates::Decline() {
  const std::lock_guard lock(mutex_);
  accepts_ = false;
}

absl::Status BackgroundUpdates::End(bool& all, absl::FunctionRef<void()> meanwhile) {
  Send(Command::kEnd, meanwhile);
  const std::lock_guard lock(mutex_);
  accepts_ = false;
  all = num_taken_ == static_cast<int64_t>(tiles_.size());
  return failure_;
}

void BackgroundUpdates::Drop() {
  Send(Command::kDrop);
}

absl::StatusOr<std::span<std::byte>> BackgroundUpdates::Buffer(int tile) {
  const Stopwatch waited;
  const TraceScope trace(Activity::kHandOver);
  Lock lock(mutex_);
  const auto num_buffers = static_cast<int64_t>(gradients_.size());
  progress_.wait(lock, [&] { return num_taken_ - num_updated_ < num_buffers || !failure_.ok(); });
  wait_s_ += waited.Seconds();
  if (!failure_.ok()) return failure_;
  FOREBAY_CHECK(!gradients_.empty());
  FOREBAY_CHECK(!accepts_ || tiles_[static_cast<size_t>(num_taken_)] == tile);
  return GradientAt(num_taken_);
}

void BackgroundUpdates::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!accepts_) return;
    ++num_taken_;
  }
  wake_.notify_one();
}

// ---- The updates' thread

void BackgroundUpdates::Run() {
  NameThreadInTraces("updates beside the passes");
  Lock lock(mutex_);
  while (command_ != Command::kQuit) {
    if (MayUpdate()) {
      UpdateTaken(lock);
    } else if (command_ != Command::kNone) {
      Obey(lock);
    } else if (reads_ != Reads::kNothing) {
      ReadWhileIdle(lock);
    } else {
      wake_.wait(lock);
    }
  }
}

void BackgroundUpdates::Obey(Lock& lock) {
  // Nobody else touches what is staged meanwhile: the training thread waits for the answer.
  const Command command = command_;
  const bool begins = command == Command::kBegin;
  const bool all_are_updated = num_updated_ == std::ssize(tiles_);
  lock.unlock();
  if (begins) {
    staged_->Begin(tiles_, /*with_weights=*/gradients_.empty());
  } else if (command == Command::kDrop || (command == Command::kEnd && !all_are_updated)) {
    staged_->Cancel();  // else nothing is staged but `then_`
  }
  lock.lock();
  if (command == Command::kDrop) {
    accepts_ = false;
    num_taken_ = num_updated_ = 0;
  }
  reads_ = begins ? Reads::kFurther : Reads::kNothing;
  command_ = Command::kNone;
  progress_.notify_all();
}

// Buffers become free as their write-backs end, of which nobody tells this thread: it looks.
void BackgroundUpdates::ReadWhileIdle(Lock& lock) {
  const Reads reads = reads_;
  lock.unlock();
  const bool has_more =
      reads == Reads::kEarly ? staged_->ReadEarlyInTurns(tiles_) : staged_->ReadFurther();
  lock.lock();
  const auto has_other_work = [this] { return MayUpdate() || command_ != Command::kNone; };
  if (has_more) {
    wake_.wait_for(lock, kSoon, has_other_work);
  } else if (reads_ == reads) {
    reads_ = Reads::kNothing;
  }
}

// One tile.
void BackgroundUpdates::UpdateTaken(Lock& lock) {
  const int64_t number = num_updated_;
  const int tile = tiles_[static_cast<size_t>(number)];
  lock.unlock();
  absl::StatusOr<StagingBuffer> buffer;  // of what lives in RAM: empty
  if (staged_->Needs(tile)) {
    const ActivityScope scope(Activity::kReadState);
    buffer = staged_->Await(tile);
  } else {
    buffer = StagingBuffer();
  }
  absl::Status status = buffer.status();
  if (status.ok()) status = update_(tile, *buffer, GradientAt(number));
  if (status.ok() && staged_->Needs(tile)) staged_->Done();
  if (status.ok()) staged_->ReadEarly(then_);
  lock.lock();
  failure_.Update(status);
  if (status.ok()) ++num_updated_;
  reads_ = Reads::kFurther;
  progress_.notify_all();
}

}  // namespace forebay
