#include "forebay/aio/libaio_port.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "forebay/aio/kernel_limits.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int kLibaioDepth = 128;

class LibaioPort : public IoPort {
 public:
  explicit LibaioPort(std::unique_ptr<LibaioCalls> calls)
      : calls_(std::move(calls)), blocks_(kLibaioDepth), events_(kLibaioDepth + 1) {
    ready_.reserve(kLibaioDepth + 1);
    failed_.reserve(2 * kLibaioDepth);
  }

  // Waits for every call in flight, but for those of a device that stalled: their context is left
  // to the end of the process.
  ~LibaioPort() override {
    if (context_ != nullptr && !abandoned_) calls_->Destroy(context_);
  }

  absl::Status Open() {
    // One more for the wake-up.
    const int result = calls_->Setup(kLibaioDepth + 1, &context_);
    if (result != 0) {
      context_ = nullptr;
      return EnvironmentError(WhyNoLibaio(-result));
    }
    wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_fd_.valid()) return EnvironmentError("libaio: eventfd failed: " + ErrnoText(errno));
    return ArmWake();
  }

  int depth() const override { return kLibaioDepth; }

  void Queue(const Call& call) override {
    iocb& block = blocks_[call.tag];
    void* const data = call.buffer.data();
    switch (call.kind) {
      case IoKind::kRead:
        ::io_prep_pread(&block, call.fd, data, call.buffer.size(), call.offset_bytes);
        break;
      case IoKind::kWrite:
        ::io_prep_pwrite(&block, call.fd, data, call.buffer.size(), call.offset_bytes);
        break;
      case IoKind::kFlush:
        ::io_prep_fdsync(&block, call.fd);
        break;
    }
    ready_.push_back(&block);
  }

  // Most file systems cannot: the call then ends by itself, or never.
  void Cancel(uint32_t tag) override {
    iocb* const block = &blocks_[tag];
    if (std::erase(ready_, block) > 0) {
      failed_.push_back({tag, -ECANCELED});
      return;
    }
    io_event event = {};
    calls_->Cancel(context_, block, &event);
  }

  void Submit() override { SubmitReady(); }

  int Run(std::span<Result> results, int64_t timeout_us) override {
    SubmitReady();
    if (!wake_armed_) ArmWake().IgnoreError();
    int num_results = 0;
    const auto room = [&] { return num_results < static_cast<int>(results.size()); };
    for (; room() && !failed_.empty(); failed_.pop_back()) results[num_results++] = failed_.back();
    if (num_results > 0) timeout_us = 0;
    // What the kernel did not take yet is tried again soon, with what ends meanwhile.
    if (!ready_.empty() || !wake_armed_) {
      timeout_us = timeout_us < 0 ? kRetryUs : std::min(timeout_us, kRetryUs);
    }
    timespec timeout = {timeout_us / 1'000'000, timeout_us % 1'000'000 * 1000};
    const long most = std::min<long>(static_cast<long>(events_.size()),
                                     static_cast<long>(results.size()) - num_results);
    if (most <= 0) return num_results;
    const int count = calls_->GetEvents(context_, 1, most, events_.data(),
                                        timeout_us == kNoTimeout ? nullptr : &timeout);
    for (int i = 0; i < count; ++i) {
      if (events_[i].obj == &wake_call_) {
        uint64_t wakes = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_fd_.get(), &wakes, sizeof(wakes));
        wake_armed_ = false;
      } else {
        results[num_results++] = {static_cast<uint32_t>(events_[i].obj - blocks_.data()),
                                  ResultOf(events_[i])};
      }
    }
    return num_results;
  }

  void Wake() override {
    const uint64_t one = 1;
    // Can only fail when the counter is full, and then the reader is awake.
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  }

  void AbandonCalls() override { abandoned_ = true; }
  std::string name() const override { return "libaio"; }

 private:
  static constexpr int64_t kRetryUs = 1000;

  // `res` is the count or -errno of the transfer, as an unsigned number; `res2` an error that some
  // drivers report beside a count.
  static int64_t ResultOf(const io_event& event) {
    const auto result = static_cast<int64_t>(static_cast<long>(event.res));
    const auto second = static_cast<int64_t>(static_cast<long>(event.res2));
    if (result < 0 || second == 0) return result;
    return second < 0 ? second : -EIO;
  }

  // io_submit takes as many as it can from the front. An error is about the first one alone.
  void SubmitReady() {
    size_t taken = 0;
    while (taken < ready_.size()) {
      const int result =
          calls_->Submit(context_, static_cast<long>(ready_.size() - taken), ready_.data() + taken);
      if (result > 0) {
        taken += static_cast<size_t>(result);
      } else if (result == -EINTR) {
        continue;
      } else if (result == 0 || result == -EAGAIN) {
        break;  // for lack of requests: some must end first
      } else {
        Refuse(ready_[taken++], result);
      }
    }
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(taken));
  }

  void Refuse(iocb* block, int result) {
    if (block == &wake_call_) return;
    // Kernels before 4.18, and some file systems, have no asynchronous flush.
    if (block->aio_lio_opcode == IO_CMD_FDSYNC && (result == -EINVAL || result == -ENOSYS)) {
      result = ::fdatasync(block->aio_fildes) == 0 ? 0 : -errno;
    }
    failed_.push_back({static_cast<uint32_t>(block - blocks_.data()), result});
  }

  // A wait in io_getevents is woken through a poll for the eventfd (Linux 4.18).
  absl::Status ArmWake() {
    ::io_prep_poll(&wake_call_, wake_fd_.get(), POLLIN);
    iocb* call = &wake_call_;
    const int result = calls_->Submit(context_, 1, &call);
    wake_armed_ = result == 1;
    return wake_armed_ ? absl::OkStatus() : EnvironmentError(WhyNoLibaio(-result));
  }

  const std::unique_ptr<LibaioCalls> calls_;
  io_context_t context_ = nullptr;
  bool abandoned_ = false;
  UniqueFd wake_fd_;
  iocb wake_call_ = {};
  bool wake_armed_ = false;
  std::vector<iocb> blocks_;    // by tag
  std::vector<iocb*> ready_;    // not taken by the kernel yet
  std::vector<Result> failed_;  // refused by it
  std::vector<io_event> events_;
};

}  // namespace

int LibaioCalls::Setup(int depth, io_context_t* context) {
  return ::io_setup(depth, context);
}
int LibaioCalls::Submit(io_context_t context, long count, iocb** calls) {
  return ::io_submit(context, count, calls);
}
int LibaioCalls::GetEvents(io_context_t context, long least, long most, io_event* events,
                           timespec* timeout) {
  return ::io_getevents(context, least, most, events, timeout);
}
int LibaioCalls::Cancel(io_context_t context, iocb* call, io_event* event) {
  return ::io_cancel(context, call, event);
}
int LibaioCalls::Destroy(io_context_t context) {
  return ::io_destroy(context);
}

absl::StatusOr<std::unique_ptr<IoPort>> OpenLibaioPort(std::unique_ptr<LibaioCalls> calls) {
  auto port = std::make_unique<LibaioPort>(std::move(calls));
  FOREBAY_RETURN_IF_ERROR(port->Open());
  return port;
}

absl::StatusOr<std::unique_ptr<IoPort>> OpenLibaioPort() {
  return OpenLibaioPort(std::make_unique<LibaioCalls>());
}

}  // namespace forebay
