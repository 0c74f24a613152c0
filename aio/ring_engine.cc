// The engine over an IoPort: one thread takes pieces from the queues, hands them to the port in
// batches and takes their results. Why a thread, when the callers' own could submit and reap:
// queues with caps must be refilled while every caller computes, and the kernel's cheapest mode
// wants one thread per ring. It sleeps in the port while there is nothing to do, and one wake-up
// covers all that was submitted meanwhile.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "forebay/aio/engine_base.h"
#include "forebay/aio/io_port.h"
#include "forebay/aio/io_thread.h"
#include "forebay/aio/kernel_limits.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// One huge page: measured, half of it costs a quarter more CPU, and twice as much saves little
// (docs/performance.md), while classes take turns and the cap of bytes counts in these.
constexpr int64_t kRingBlockBytes = int64_t{2} << 20;
constexpr int64_t kNever = INT64_MAX;
// What an errand lets pass on a disk whose clock runs only while it is driven.
constexpr int64_t kMomentUs = 1000;

// What a Run touches. Apart from the engine, because a thread that is left behind in a Run (libaio
// blocks in submission when the device stalls) still has it.
struct PortAndResults {
  std::unique_ptr<IoPort> port;
  std::vector<IoPort::Result> results;
  std::vector<IoPort::Call> calls;  // ready to be queued
  std::shared_ptr<void> paths;      // that they name
};

int64_t TimedSubmit(IoPort& port) {
  const auto begin = std::chrono::steady_clock::now();
  port.Submit();
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

class RingEngine : public EngineBase {
 public:
  RingEngine(const EngineOptions& options, RingDrive drive, int depth,
             std::shared_ptr<PortAndResults> io)
      : EngineBase(options, depth, kRingBlockBytes),
        drive_(drive),
        due_us_(static_cast<size_t>(depth), kNever),
        io_(std::move(io)) {
    io_->results.resize(static_cast<size_t>(depth));
    io_->calls.reserve(static_cast<size_t>(depth));
    io_->paths = paths();
  }

  ~RingEngine() override {
    const bool some_lost = Shutdown();
    if (some_lost) io_->port->AbandonCalls();
    if (drive_ == RingDrive::kWaiter) return;
    io_->port->Wake();
    thread_->End(some_lost);
  }

  // The own thread's function; returns at the end of the engine.
  void Drive(IoThread::Calls& guard) {
    Lock lock(mutex_);
    while (!stopping()) {
      if (!RunOnce(lock, &guard, kNever)) return;
    }
  }
  void SetThread(std::unique_ptr<IoThread> thread) { thread_ = std::move(thread); }

  absl::Status RegisterBuffers(std::span<std::byte> memory) override {
    if (!io_->port->registers_buffers()) return absl::OkStatus();
    int error_number = 0;
    if (!OnDriver([&](IoPort& port) { error_number = port.RegisterBuffers(memory); })) {
      error_number = ETIMEDOUT;
    }
    const Lock lock(mutex_);
    const auto size_bytes = static_cast<int64_t>(memory.size());
    buffers_.push_back({memory, error_number});
    if (error_number == 0) return absl::OkStatus();
    return EnvironmentError(WhyNotRegistered(error_number, size_bytes, size_bytes));
  }

  void UnregisterBuffers(std::span<std::byte> memory) override {
    EngineBase::UnregisterBuffers(memory);
    bool is_registered = false;
    {
      const Lock lock(mutex_);
      std::erase_if(buffers_, [&](const Buffer& buffer) {
        const bool is_part = buffer.memory.data() >= memory.data() &&
                             buffer.memory.data() < memory.data() + memory.size();
        is_registered = is_registered || (is_part && buffer.error_number == 0);
        return is_part;
      });
    }
    if (!is_registered) return;
    if (OnDriver([&](IoPort& port) { port.UnregisterBuffers(memory); })) return;
    // The memory goes now: before anything else is registered or moved, the port has to forget it.
    const Lock lock(mutex_);
    to_forget_.push_back(memory);
  }

  std::string RegistrationNote() const override { return registration_gap().Note(); }
  RegistrationGap registration_gap() const override {
    const Lock lock(mutex_);
    RegistrationGap gap;
    for (const Buffer& buffer : buffers_) {
      const auto size_bytes = static_cast<int64_t>(buffer.memory.size());
      gap.Add({size_bytes, buffer.error_number == 0 ? 0 : size_bytes, buffer.error_number});
    }
    return gap;
  }
  std::string name() const override { return io_->port->name(); }

 private:
  struct Buffer {
    std::span<std::byte> memory;
    int error_number = 0;  // why it is not registered; 0: it is
  };
  // Something that only the thread of the port may do; lives on the stack of who wants it.
  struct Errand {
    std::function<void(IoPort&)> run;
    bool done = false;
    Errand* next = nullptr;
  };

  int64_t NowUs() const override { return io_->port->NowUs(); }
  void OnSubmit(Lock& lock) override { WakeDriver(lock); }
  void OnCancel(Lock& lock) override {
    cancels_wanted_ = true;
    WakeDriver(lock);
  }

  void WakeDriver(Lock& lock) {
    if (!std::exchange(asleep_, false)) return;
    lock.unlock();
    io_->port->Wake();
    lock.lock();
  }

  int RegisterFile(int fd) override {
    int registered = -1;
    OnDriver([&](IoPort& port) { registered = port.RegisterFile(fd); });
    return registered;
  }
  void UnregisterFile(int registered) override {
    if (OnDriver([&](IoPort& port) { port.UnregisterFile(registered); })) return;
    // Until then the kernel keeps the file: its lock, and its space when it is removed.
    const Lock lock(mutex_);
    files_to_forget_.push_back(registered);
  }

  // False when the port's thread did not come by: a stalled device holds it. Who finds it held does
  // not wait again, as the end of a run has something to say for every buffer and file.
  bool OnDriver(std::function<void(IoPort&)> run) {
    Errand errand;
    errand.run = std::move(run);
    Lock lock(mutex_);
    if (driver_held_) return false;
    errand.next = std::exchange(errands_, &errand);
    WakeDriver(lock);
    const std::chrono::duration<double> limit(options_.stall_limit_s);
    while (!errand.done) {
      if (DriveAsWaiter(lock, NowUs() + kMomentUs)) continue;
      // A thread that a stalled device holds in a call (libaio) runs no errands.
      if (changed_.wait_for(lock, limit) == std::cv_status::timeout && !errand.done) {
        Withdraw(errand);
        driver_held_ = true;
        return false;
      }
    }
    return true;
  }

  void Withdraw(const Errand& errand) {
    Errand** link = &errands_;
    while (*link != &errand) link = &(*link)->next;
    *link = errand.next;
  }

  void RunErrands() {
    for (const std::span<std::byte> memory : to_forget_) io_->port->UnregisterBuffers(memory);
    to_forget_.clear();
    for (const int registered : files_to_forget_) io_->port->UnregisterFile(registered);
    files_to_forget_.clear();
    if (errands_ == nullptr) return;
    for (Errand* errand = std::exchange(errands_, nullptr); errand != nullptr;) {
      Errand* const next = errand->next;  // the errand may be gone once it is done
      errand->run(*io_->port);
      errand->done = true;
      errand = next;
    }
    changed_.notify_all();
  }

  void Sleep(Lock& lock, int64_t deadline_us) override {
    if (!DriveAsWaiter(lock, deadline_us)) {
      // A simulated clock stands still meanwhile; the thread that drives wakes this one.
      if (drive_ == RingDrive::kWaiter) return changed_.wait(lock);
      EngineBase::Sleep(lock, deadline_us);
    }
  }

  // False when another thread is driving.
  bool DriveAsWaiter(Lock& lock, int64_t deadline_us) {
    if (drive_ != RingDrive::kWaiter || driven_) return false;
    driven_ = true;
    RunOnce(lock, nullptr, deadline_us);
    driven_ = false;
    changed_.notify_all();
    return true;
  }

  // Starts what may start, waits for results until `deadline_us` at most, takes them. False when
  // the engine is gone.
  bool RunOnce(Lock& lock, IoThread::Calls* guard, int64_t deadline_us) {
    SendCancels(lock);
    NotifyCompleted(lock);             // opens the lock, so nothing may have been looked at before
    if (cancels_wanted_) return true;  // nobody wakes a thread that is not asleep yet
    RunErrands();
    while (Slot* const slot = Start(lock)) Call(*slot);
    int64_t timeout_us = IoPort::kNoTimeout;
    const int64_t now_us = NowUs();
    deadline_us = std::min(deadline_us, StartRetries(now_us));
    if (deadline_us != kNever) timeout_us = std::max<int64_t>(0, deadline_us - now_us);
    PortAndResults& io = *io_;
    const auto num_calls = static_cast<int64_t>(io.calls.size());
    const bool timed = options_.time_submissions && num_calls > 0;
    for (const IoPort::Call& call : io.calls) io.port->Queue(call);
    io.calls.clear();
    asleep_ = true;
    lock.unlock();
    if (guard != nullptr) guard->Begin();
    const int64_t submit_ns = timed ? TimedSubmit(*io.port) : 0;
    const int num_results = io.port->Run(io.results, timeout_us);
    if (guard != nullptr && !guard->End()) return false;
    lock.lock();
    asleep_ = false;
    driver_held_ = false;
    if (timed) CountSubmission(lock, num_calls, submit_ns);
    for (int i = 0; i < num_results; ++i) Take(lock, io.results[i]);
    NotifyCompleted(lock);
    return true;
  }

  void Call(const Slot& slot) {
    const auto tag = static_cast<uint32_t>(&slot - slots_.data());
    io_->calls.push_back({slot.kind, slot.op->io_class, slot.file->fd.get(), slot.file->registered,
                          slot.file->path, slot.transfer.rest(), slot.transfer.rest_offset_bytes(),
                          tag});
  }

  // Puts calls whose back-off is over among those to be queued; when the next one is.
  int64_t StartRetries(int64_t now_us) {
    int64_t next_us = kNever;
    if (num_backing_off_ == 0) return next_us;
    for (size_t tag = 0; tag < due_us_.size(); ++tag) {
      if (due_us_[tag] > now_us) {
        next_us = std::min(next_us, due_us_[tag]);
      } else {
        due_us_[tag] = kNever;
        --num_backing_off_;
        Call(slots_[tag]);
      }
    }
    return next_us;
  }

  // Calls in the kernel are asked back; those that back off are not there, and end at once.
  void SendCancels(Lock& lock) {
    if (!std::exchange(cancels_wanted_, false)) return;
    for (size_t tag = 0; tag < slots_.size(); ++tag) {
      Slot& slot = slots_[tag];
      if (!slot.used || !std::exchange(slot.cancel_wanted, false)) continue;
      if (due_us_[tag] == kNever) {
        io_->port->Cancel(static_cast<uint32_t>(tag));
      } else {
        due_us_[tag] = kNever;
        --num_backing_off_;
        Finish(lock, slot, absl::CancelledError());
      }
    }
  }

  void Take(Lock& lock, const IoPort::Result& result) {
    Slot& slot = slots_[result.tag];
    FOREBAY_CHECK(slot.used);
    if (result.result == -ECANCELED && !IsWanted(slot)) {
      return Finish(lock, slot, absl::CancelledError());
    }
    if (slot.kind == IoKind::kFlush) {
      return Finish(lock, slot, FlushStatus(slot, static_cast<int>(result.result)));
    }
    switch (slot.transfer.Apply(result.result)) {
      case Transfer::Next::kDone:
        return Finish(lock, slot, {});
      case Transfer::Next::kFailed:
        return Finish(lock, slot, slot.transfer.status());
      case Transfer::Next::kCall:
        if (!IsWanted(slot)) return Finish(lock, slot, absl::CancelledError());
        due_us_[result.tag] = NowUs() + slot.transfer.backoff_us();
        ++num_backing_off_;
    }
  }

  const RingDrive drive_;
  std::vector<int64_t> due_us_;  // by slot: when a call that backs off is made again
  int num_backing_off_ = 0;
  bool cancels_wanted_ = false;
  bool asleep_ = false;       // in Run, or about to be
  bool driven_ = false;       // by a waiter
  bool driver_held_ = false;  // it ran no errand for the whole of stall_limit_s, and is in that Run
  Errand* errands_ = nullptr;
  std::vector<Buffer> buffers_;  // that are, or should be, registered
  // Unregistered and perhaps freed while the port's thread was held; it forgets them first.
  std::vector<std::span<std::byte>> to_forget_;
  std::vector<int> files_to_forget_;
  std::condition_variable changed_;  // an errand is done, or nobody drives any more
  const std::shared_ptr<PortAndResults> io_;
  std::unique_ptr<IoThread> thread_;
};

// How the thread and its creator meet.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  bool opened = false;
  absl::Status status;
  RingEngine* engine = nullptr;
};

void RunThread(const PortFactory& factory, Meeting& start, PortAndResults& io,
               IoThread::Calls& guard) {
  RingEngine* engine = nullptr;
  {
    std::unique_lock lock(start.mutex);
    absl::StatusOr<std::unique_ptr<IoPort>> port = factory();
    start.status = port.status();
    if (port.ok()) io.port = *std::move(port);
    start.opened = true;
    start.changed.notify_all();
    if (io.port == nullptr) return;
    start.changed.wait(lock, [&] { return start.engine != nullptr; });
    engine = start.engine;
  }
  engine->Drive(guard);
}

}  // namespace

int64_t IoPort::NowUs() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

absl::StatusOr<std::unique_ptr<Engine>> CreateRingEngine(const EngineOptions& options,
                                                         RingDrive drive,
                                                         const PortFactory& factory) {
  auto io = std::make_shared<PortAndResults>();
  if (drive == RingDrive::kWaiter) {
    FOREBAY_ASSIGN_OR_RETURN(io->port, factory());
    const int depth = io->port->depth();
    return std::make_unique<RingEngine>(options, drive, depth, std::move(io));
  }
  auto start = std::make_shared<Meeting>();
  FOREBAY_ASSIGN_OR_RETURN(IoThread started, IoThread::Start(
                                                 "forebay-io",
                                                 [factory, start, io](IoThread::Calls& guard) {
                                                   RunThread(factory, *start, *io, guard);
                                                 },
                                                 io));
  auto thread = std::make_unique<IoThread>(std::move(started));
  {
    std::unique_lock lock(start->mutex);
    start->changed.wait(lock, [&] { return start->opened; });
  }
  if (!start->status.ok()) {
    thread->End(/*may_leave=*/false);
    return start->status;
  }
  auto engine = std::make_unique<RingEngine>(options, drive, io->port->depth(), io);
  engine->SetThread(std::move(thread));
  {
    const std::lock_guard lock(start->mutex);
    start->engine = engine.get();
  }
  start->changed.notify_all();
  return engine;
}

absl::StatusOr<std::unique_ptr<Engine>> CreateIoUringEngine(const EngineOptions& options) {
  return CreateRingEngine(options, options.drive, OpenIoUringPort);
}

absl::StatusOr<std::unique_ptr<Engine>> CreateLibaioEngine(const EngineOptions& options) {
  return CreateRingEngine(options, options.drive, [] { return OpenLibaioPort(); });
}

}  // namespace forebay
