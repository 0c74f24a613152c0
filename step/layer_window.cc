#include "forebay/step/layer_window.h"

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/base/wait_meanwhile.h"

// No deadlock, counted in buffers. Acquire waits for the front access p. Buffers are assigned in
// order within a class: accesses before p are released or lent, and accesses behind p get none
// before p has one. So those of p's class that are in use are lent to other layers, and one is not
// (CheckAcquire). Taking it waits for reads, write-backs and devices only, and those wait for
// nobody.
namespace forebay {

LayerWindow::LayerWindow(WindowBuffers buffers, const Inventory& inventory, LayerFiller* filler)
    : inventory_(inventory),
      filler_(filler),
      buffers_(std::move(buffers)),
      uses_(static_cast<size_t>(buffers_.num_buffers())) {}

absl::StatusOr<std::unique_ptr<LayerWindow>> LayerWindow::Create(WindowBuffers buffers,
                                                                 const Inventory& inventory,
                                                                 LayerFiller* filler) {
  std::unique_ptr<LayerWindow> window(new LayerWindow(std::move(buffers), inventory, filler));
  FOREBAY_ASSIGN_OR_RETURN(
      window->thread_, StartThread("reading weights ahead", [raw = window.get()] { raw->Run(); }));
  return window;
}

LayerWindow::~LayerWindow() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = wake_requested_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

// ---- The window's thread

void LayerWindow::Run() {
  activity_.BelongsToThisThread();
  NameThreadInTraces(kWindowThread);
  Lock lock(mutex_);
  while (!stopping_) {
    if (work_ != nullptr) {
      TakeBuffersBack();
      lock.unlock();
      const absl::Status status = (*work_)();
      lock.lock();
      if (!status.ok()) Fail(status);
      work_ = nullptr;
      progress_.notify_all();
    } else if (!failure_.ok() || !StageNext(lock, announced_)) {
      Idle(lock);
    }
  }
  lock.unlock();
  // Errors were reported, or nobody asked for the result.
  for (int buffer = 0; buffer < buffers_.num_buffers(); ++buffer) {
    EndTransfers(buffer, buffers_[buffer].layer).IgnoreError();
  }
}

// Until the caller wants something, or the filler may go on. So the filler may be reading further
// when Between returns.
void LayerWindow::Idle(Lock& lock) {
  constexpr std::chrono::milliseconds kSoon{1};
  bool has_more = false;
  if (failure_.ok()) {
    lock.unlock();
    has_more = filler_->ReadFurther();
    lock.lock();
  }
  const auto is_wanted = [this] { return wake_requested_; };
  if (!has_more) {
    wake_.wait(lock, is_wanted);
  } else if (!wake_.wait_for(lock, kSoon, is_wanted)) {
    return;
  }
  wake_requested_ = false;
}

// Stages the next access of `queue` and gives buffers to those behind it. False when there is
// nothing to do until the caller announces or releases something.
bool LayerWindow::StageNext(Lock& lock, AccessQueue& queue) {
  AssignBuffers(lock, queue);
  if (!failure_.ok() || queue.ready_end() == queue.end()) return false;
  const Access access = queue.At(queue.ready_end());
  if (access.buffer < 0 || !AwaitParts(lock, queue, access)) return false;
  Use& use = uses_[access.buffer];
  const bool exposed = use.num_exposed > 0;
  lock.unlock();
  const absl::Status status = Stage(access.buffer, access.layer, exposed);
  lock.lock();
  if (!status.ok()) {
    Fail(status);
    return false;
  }
  queue.MarkNextReady();
  ++use.num_exposed;
  progress_.notify_all();
  return true;
}

// Gives buffers to waiting accesses in order, as far as there are any, and starts their reads.
void LayerWindow::AssignBuffers(Lock& lock, AccessQueue& queue) {
  bool exhausted[kNumWindowClasses + 1] = {};  // by BufferClass
  for (int64_t position = queue.ready_end(); position < queue.end(); ++position) {
    const int layer = queue.At(position).layer;
    if (queue.At(position).buffer >= 0) continue;
    // In order within a class: an access must not take a buffer, nor keep one busy, before those
    // ahead of it have theirs.
    bool& none_left = exhausted[static_cast<int>(buffers_.ClassOf(layer))];
    const int buffer = none_left ? -1 : buffers_.Choose(layer);
    none_left = buffer < 0;
    if (none_left) continue;
    const int before = buffers_[buffer].layer;
    buffers_.Take(buffer, layer);
    queue.At(position).buffer = buffer;
    if (before == layer) continue;
    queue.At(position).was_read = true;
    ++stats_.weight_reads;
    const bool urgent = position == queue.ready_end();
    lock.unlock();
    const absl::Status status = EndTransfers(buffer, before);
    if (status.ok()) filler_->StartRead(buffer, layer, urgent);
    lock.lock();
    if (!status.ok()) return Fail(status);
  }
}

// Waits for a layer, and starts to read others whose buffers become free meanwhile: else the disk
// would have nothing to do when this one is there. False after an error.
bool LayerWindow::AwaitParts(Lock& lock, AccessQueue& queue, const Access& access) {
  for (;;) {
    lock.unlock();
    const absl::StatusOr<bool> has_more = filler_->AwaitPart(access.buffer, access.layer);
    lock.lock();
    if (!has_more.ok()) Fail(has_more.status());
    if (!failure_.ok()) return false;
    if (!*has_more) return true;
    AssignBuffers(lock, queue);
  }
}

// Brings the weights in the buffer up to date. `exposed`: somebody may be reading them.
absl::Status LayerWindow::Stage(int buffer, int layer, bool exposed) {
  FOREBAY_RETURN_IF_ERROR(filler_->FinishRead(buffer, layer, /*is_used=*/true));
  if (!filler_->UpdateIsDue(layer)) return absl::OkStatus();
  // An update is due only when all accesses of the step before it were released.
  FOREBAY_CHECK(!exposed);
  FOREBAY_RETURN_IF_ERROR(AwaitLastRead(buffer, layer));
  return filler_->Update(buffer, layer);
}

// Un-stages what was not acquired. The weights stay where they are and will be found there if
// nothing replaces them.
void LayerWindow::TakeBuffersBack() {
  for (int64_t position = announced_.front(); position < announced_.end(); ++position) {
    const int buffer = std::exchange(announced_.At(position).buffer, -1);
    if (buffer < 0) continue;
    buffers_.TakeBack(buffer);
    if (position < announced_.ready_end()) --uses_[buffer].num_exposed;
  }
  announced_.Rewind();
}

absl::Status LayerWindow::StageAll(std::span<const int> layers) {
  Lock lock(mutex_);
  FOREBAY_CHECK(num_lent_ == 0);
  for (const int layer : layers) unannounced_.Push(layer);
  while (failure_.ok() && !unannounced_.empty()) {
    // Nothing is lent, so there is always a buffer for the first.
    const bool staged = StageNext(lock, unannounced_);
    FOREBAY_CHECK(staged || !failure_.ok());
    if (staged) EndUse(unannounced_.PopReady().buffer);
  }
  return failure_;
}

// Before the buffer, which holds `layer` or none (-1), gets other bytes.
absl::Status LayerWindow::EndTransfers(int buffer, int layer) {
  if (layer < 0) return absl::OkStatus();
  // A cancelled access may have left a read behind.
  absl::Status status = filler_->FinishRead(buffer, layer, /*is_used=*/false);
  status.Update(filler_->FinishWriteBack(buffer, layer));
  status.Update(AwaitLastRead(buffer, layer));
  return status;
}

absl::Status LayerWindow::AwaitLastRead(int buffer, int layer) {
  Event* last_read = nullptr;
  {
    const std::lock_guard lock(mutex_);
    last_read = std::exchange(uses_[buffer].last_read, nullptr);
  }
  if (last_read == nullptr) return absl::OkStatus();
  const ActivityScope scope(Activity::kDevice);
  const absl::Status status = last_read->Await();
  return status.ok()
             ? status
             : Annotate(status, fmt::format("work on a device that reads '{}'", NameOf(layer)));
}

void LayerWindow::Fail(const absl::Status& status) {
  failure_.Update(status);
  progress_.notify_all();
}

// ---- The caller

template <typename Done>
void LayerWindow::Await(Lock& lock, const Done& is_done, absl::FunctionRef<void()> meanwhile) {
  if (is_done()) return;
  const ActivityTimes before = activity_.Times();
  const TraceScope trace(kAwaitWindow);
  WaitMeanwhile(progress_, lock, is_done, meanwhile);
  stats_.waits += activity_.Times() - before;
}

absl::Status LayerWindow::Between(absl::FunctionRef<absl::Status()> work,
                                  absl::FunctionRef<void()> meanwhile) {
  Lock lock(mutex_);
  work_ = &work;
  wake_requested_ = true;
  wake_.notify_one();
  Await(
      lock, [this] { return work_ == nullptr; }, meanwhile);
  return failure_;
}

void LayerWindow::CancelExpected() {
  const auto work = [this] {
    const std::lock_guard lock(mutex_);
    announced_.Clear();
    return absl::OkStatus();
  };
  Between(work).IgnoreError();
}

void LayerWindow::Forget(absl::FunctionRef<bool(int layer)> which) {
  const auto work = [&] {
    {
      const std::lock_guard lock(mutex_);
      FOREBAY_CHECK(announced_.empty() && num_lent_ == 0);
    }
    absl::Status status;
    for (int buffer = 0; buffer < buffers_.num_buffers(); ++buffer) {
      const int layer = buffers_[buffer].layer;
      if (layer < 0 || !which(layer)) continue;
      // A cancelled access may have left a read.
      filler_->FinishRead(buffer, layer, /*is_used=*/false).IgnoreError();
      status.Update(EndTransfers(buffer, layer));
      const std::lock_guard lock(mutex_);
      buffers_.Forget(buffer);
    }
    return status;
  };
  Between(work).IgnoreError();
}

void LayerWindow::Expect(std::span<const int> layers) {
  {
    const std::lock_guard lock(mutex_);
    for (const int layer : layers) {
      FOREBAY_CHECK(layer >= 0 && layer < buffers_.num_layers());
      announced_.Push(layer);
    }
    wake_requested_ = true;
  }
  wake_.notify_one();
}

// The mistakes that a caller can make. Nothing has changed by then.
absl::Status LayerWindow::CheckAcquire(int layer) {
  if (layer < 0 || layer >= buffers_.num_layers()) {
    return UsageError(fmt::format("acquire: there is no layer {}; the last is {}", layer,
                                  buffers_.num_layers() - 1));
  }
  if (announced_.empty() || announced_.At(announced_.front()).layer != layer) {
    const std::string next =
        announced_.empty()
            ? "none is left"
            : fmt::format("the next is '{}'", NameOf(announced_.At(announced_.front()).layer));
    return UsageError(fmt::format(
        "acquire: '{}' is not the next layer that was announced: {}. Announce layers in the order "
        "in which they are acquired, or cancel what was announced",
        NameOf(layer), next));
  }
  // The deadlock that is excluded above: the caller holds every buffer that this layer could take.
  for (int buffer = 0; buffer < buffers_.num_buffers(); ++buffer) {
    const bool is_lent_to_another = uses_[buffer].num_lent > 0 && buffers_[buffer].layer != layer;
    if (buffers_[buffer].buffer_class == buffers_.ClassOf(layer) && !is_lent_to_another) {
      return absl::OkStatus();
    }
  }
  std::vector<std::string_view> lent;
  for (int buffer = 0; buffer < buffers_.num_buffers(); ++buffer) {
    if (uses_[buffer].num_lent > 0) lent.push_back(NameOf(buffers_[buffer].layer));
  }
  return UsageError(
      fmt::format("acquire: every buffer that '{}' could take is lent: '{}' {} held. Release one "
                  "first, or give "
                  "the window more buffers",
                  NameOf(layer), fmt::join(lent, "', '"), lent.size() == 1 ? "is" : "are"));
}

absl::StatusOr<int> LayerWindow::Acquire(int layer) {
  Lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  FOREBAY_RETURN_IF_ERROR(CheckAcquire(layer));
  Await(lock, [this] { return announced_.front() < announced_.ready_end() || !failure_.ok(); });
  if (!failure_.ok()) return failure_;
  const Access access = announced_.PopReady();
  if (!access.was_read) ++stats_.weight_hits;
  ++uses_[access.buffer].num_lent;
  ++num_lent_;
  return access.buffer;
}

bool LayerWindow::NextIsReady() const {
  const std::lock_guard lock(mutex_);
  return announced_.front() < announced_.ready_end() || announced_.empty() || !failure_.ok();
}

void LayerWindow::Release(int layer, Event* done) {
  {
    const std::lock_guard lock(mutex_);
    const int buffer = buffers_.Find(layer);
    FOREBAY_CHECK(buffer >= 0 && uses_[buffer].num_lent > 0);
    --uses_[buffer].num_lent;
    --num_lent_;
    EndUse(buffer);
    if (done != nullptr) uses_[buffer].last_read = done;
    wake_requested_ = true;
  }
  wake_.notify_one();
}

void LayerWindow::EndUse(int buffer) {
  --uses_[buffer].num_exposed;
  buffers_.Release(buffer);
}

WindowStats LayerWindow::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace forebay
