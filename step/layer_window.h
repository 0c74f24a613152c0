// A window of layers in memory. A thread brings announced layers in ahead of their use; they are
// lent in that order, and give way to others. How a layer comes into a buffer is the filler's: from
// a store, with an update on the way (swap/window/swapper.h), or from a checkpoint folder
// (model/files/checkpoint_source.h).
//
// The thread (the only one that calls the filler) stages the announced accesses in order:
//   take a buffer -> StartRead (skipped when the buffer still holds the layer) -> FinishRead -> if
//   its update is due: Update -> ready for Acquire.
// Buffers are taken, and reads started, ahead of that: as many as are free.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/activity.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/device/device.h"
#include "forebay/step/access_queue.h"
#include "forebay/step/window_buffers.h"

namespace forebay {

// Owns the memory of the buffers, and knows how a layer gets there. Called on the window's thread
// alone.
class LayerFiller {
 public:
  virtual ~LayerFiller() = default;
  // Starts to read the weights of `layer` into the buffer, where nothing is under way.
  // `urgent`: they are the next that will be acquired.
  virtual void StartRead(int buffer, int layer, bool urgent) = 0;
  // Waits for a part of a read that was started: whether there is more of it. Between the parts the
  // window starts to read into buffers that became free.
  virtual absl::StatusOr<bool> AwaitPart(int /*buffer*/, int /*layer*/) { return false; }
  // Completes the read, where one was started. `is_used`: what was read will be used.
  virtual absl::Status FinishRead(int buffer, int layer, bool is_used) = 0;
  // Whether the weights have to be updated before they are lent.
  virtual bool UpdateIsDue(int /*layer*/) const { return false; }
  // Updates them in place, while nobody reads them. They may stay borrowed until FinishWriteBack.
  virtual absl::Status Update(int /*buffer*/, int /*layer*/) { return absl::OkStatus(); }
  virtual absl::Status FinishWriteBack(int /*buffer*/, int /*layer*/) { return absl::OkStatus(); }
  // While there is nothing to do for the window: starts further reads that updates to come need.
  // Whether to ask again soon.
  virtual bool ReadFurther() { return false; }
};

// In traces (base/trace.h): the window's thread, and the caller's wait for it, which had the causes
// that this thread's activities meanwhile tell.
inline constexpr char kWindowThread[] = "window";
inline constexpr char kAwaitWindow[] = "wait for the window";

struct WindowStats {
  ActivityTimes waits;       // time that the caller blocked, by what the window did
  int64_t weight_reads = 0;  // layers read
  int64_t weight_hits = 0;   // accesses served without a read
};

// Used by one thread.
class LayerWindow {
 public:
  // The buffers of resident layers are filled. `inventory` (for messages) and `filler` must outlive
  // it. EnvironmentError where no thread can be had.
  static absl::StatusOr<std::unique_ptr<LayerWindow>> Create(WindowBuffers buffers,
                                                             const Inventory& inventory,
                                                             LayerFiller* filler);
  ~LayerWindow();  // nothing is under way in the buffers any more
  LayerWindow(const LayerWindow&) = delete;
  LayerWindow& operator=(const LayerWindow&) = delete;

  // As ParamSource's (param_source.h).
  void Expect(std::span<const int> layers);
  // The buffer that holds the layer. The first error of the filler or a device; it stays.
  // UsageError, with nothing changed, for another layer than the next that was announced, and where
  // the caller holds every buffer that the layer could take.
  absl::StatusOr<int> Acquire(int layer);
  // Whether Acquire of the next that was announced would return at once, with an error too.
  bool NextIsReady() const;
  void Release(int layer, Event* done = nullptr);

  // Abandons announced accesses that were not acquired (a stop in mid-step).
  void CancelExpected();
  // The window no longer holds the layers that `which` names. An error shows in the next Acquire.
  // Requires: every announced access was acquired and released; none of these layers is resident.
  void Forget(absl::FunctionRef<bool(int layer)> which);
  // Calls `work` on the window's thread, between two accesses, and waits; `meanwhile` is called on
  // the caller's thread, some times a second. What was staged and not
  // acquired is staged again behind it. Returns the first error of all, which may be that of
  // `work`.
  absl::Status Between(
      absl::FunctionRef<absl::Status()> work, absl::FunctionRef<void()> meanwhile = [] {});

  WindowStats stats() const;

  // ---- For `work` of Between

  // Stages these layers in order, and lends them to nobody. The first error of all. Requires: no
  // layer is lent.
  absl::Status StageAll(std::span<const int> layers);
  const WindowBuffers& buffers() const { return buffers_; }

 private:
  // By buffer.
  struct Use {
    int num_exposed = 0;         // accesses that are ready or lent
    int num_lent = 0;            // those of them that are lent
    Event* last_read = nullptr;  // when work on a device no longer reads it; nullptr: now
  };
  using Lock = std::unique_lock<std::mutex>;

  LayerWindow(WindowBuffers buffers, const Inventory& inventory, LayerFiller* filler);

  // The window's thread.
  void Run();
  void Idle(Lock& lock);
  bool StageNext(Lock& lock, AccessQueue& queue);
  void AssignBuffers(Lock& lock, AccessQueue& queue);
  bool AwaitParts(Lock& lock, AccessQueue& queue, const Access& access);
  absl::Status Stage(int buffer, int layer, bool exposed);
  void TakeBuffersBack();
  absl::Status EndTransfers(int buffer, int layer);
  absl::Status AwaitLastRead(int buffer, int layer);
  void Fail(const absl::Status& status);

  // The caller's.
  absl::Status CheckAcquire(int layer);

  // The caller's: waits for `is_done`, and counts that. `meanwhile`: as of Between.
  template <typename Done>
  void Await(
      Lock& lock, const Done& is_done, absl::FunctionRef<void()> meanwhile = [] {});

  void EndUse(int buffer);
  const std::string& NameOf(int layer) const { return inventory_.layers()[layer].name; }

  const Inventory& inventory_;
  LayerFiller* const filler_;
  ActivityClock activity_;   // of the window's thread
  AccessQueue unannounced_;  // of StageAll; the window's thread's

  mutable std::mutex mutex_;
  std::condition_variable wake_;      // the window's thread
  std::condition_variable progress_;  // the caller
  // Both threads touch what follows under the lock; which layer is in which buffer changes on the
  // window's thread alone, and that one reads it without. The lock is never held during I/O or a
  // call of the filler.
  WindowBuffers buffers_;
  std::vector<Use> uses_;
  AccessQueue announced_;
  int num_lent_ = 0;
  bool wake_requested_ = false;
  bool stopping_ = false;
  const absl::FunctionRef<absl::Status()>* work_ = nullptr;  // of Between
  absl::Status failure_;  // the first error; nothing is staged after it
  WindowStats stats_;
  std::thread thread_;
};

}  // namespace forebay
