// The port over io_uring: registered files, registered buffers, everything that is ready handed
// over and waited for in one system call.
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/io_port.h"
#include "forebay/aio/kernel_limits.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr unsigned kUringDepth = 128;
constexpr unsigned kNumFiles = 64;
constexpr unsigned kNumBuffers = 64;
// The kernel refuses longer registrations.
constexpr size_t kBufferBytesMax = size_t{1} << 30;

// Tags that are no call's.
constexpr uint64_t kWakeTag = uint64_t{1} << 32;
constexpr uint64_t kIgnoreTag = uint64_t{1} << 33;

// Best effort, level 0 for what somebody waits for, 4 (the default) for the rest. Schedulers that
// know priorities (mq-deadline, bfq) honour it; "none" does not look.
uint16_t PriorityOf(IoClass io_class) {
  constexpr uint16_t kBestEffort = 2 << 13;
  return io_class == IoClass::kDemandRead ? kBestEffort : kBestEffort | 4;
}

class IoUringPort : public IoPort {
 public:
  static absl::StatusOr<std::unique_ptr<IoPort>> Open() {
    std::unique_ptr<IoUringPort> port(new IoUringPort);
    FOREBAY_RETURN_IF_ERROR(port->OpenRing());
    port->wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!port->wake_fd_.valid()) {
      return EnvironmentError("io_uring: eventfd failed: " + ErrnoText(errno));
    }
    port->RegisterTables();
    port->QueueWakeRead();
    return port;
  }

  ~IoUringPort() override {
    if (opened_) ::io_uring_queue_exit(&ring_);
  }

  int depth() const override { return kUringDepth; }

  void Queue(const Call& call) override {
    io_uring_sqe* const sqe = NextSqe();
    const int file = call.registered_file >= 0 ? call.registered_file : call.fd;
    const auto size = static_cast<unsigned>(call.buffer.size());
    const auto offset = static_cast<uint64_t>(call.offset_bytes);
    void* const data = call.buffer.data();
    const int buffer = call.kind == IoKind::kFlush ? -1 : BufferIndex(call.buffer);
    if (call.kind == IoKind::kFlush) {
      ::io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
    } else if (call.kind == IoKind::kRead) {
      buffer < 0 ? ::io_uring_prep_read(sqe, file, data, size, offset)
                 : ::io_uring_prep_read_fixed(sqe, file, data, size, offset, buffer);
    } else {
      buffer < 0 ? ::io_uring_prep_write(sqe, file, data, size, offset)
                 : ::io_uring_prep_write_fixed(sqe, file, data, size, offset, buffer);
    }
    if (call.registered_file >= 0) sqe->flags |= IOSQE_FIXED_FILE;
    if (call.kind != IoKind::kFlush) sqe->ioprio = PriorityOf(call.io_class);
    ::io_uring_sqe_set_data64(sqe, call.tag);
  }

  void Cancel(uint32_t tag) override {
    io_uring_sqe* const sqe = NextSqe();
    ::io_uring_prep_cancel64(sqe, tag, 0);
    // Whether it was found shows in the call's own result.
    ::io_uring_sqe_set_data64(sqe, kIgnoreTag);
  }

  void Submit() override { ::io_uring_submit(&ring_); }

  int Run(std::span<Result> results, int64_t timeout_us) override {
    SubmitAndWait(timeout_us);
    io_uring_cqe* cqe = nullptr;
    size_t num_results = 0;
    unsigned head = 0;
    unsigned num_seen = 0;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      const uint64_t tag = ::io_uring_cqe_get_data64(cqe);
      const bool is_call = tag < kUringDepth;
      if (is_call && num_results == results.size()) break;
      if (is_call) results[num_results++] = {static_cast<uint32_t>(tag), cqe->res};
      if (tag == kWakeTag) wake_read_due_ = true;
      ++num_seen;
    }
    ::io_uring_cq_advance(&ring_, num_seen);
    if (wake_read_due_) QueueWakeRead();
    return static_cast<int>(num_results);
  }

  void Wake() override {
    const uint64_t one = 1;
    // Can only fail when the counter is full, and then the reader is awake.
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
  }

  int RegisterFile(int fd) override {
    const auto free = std::ranges::find(files_, -1);
    if (free == files_.end()) return -1;
    const auto index = static_cast<unsigned>(free - files_.begin());
    if (::io_uring_register_files_update(&ring_, index, &fd, 1) != 1) return -1;
    *free = fd;
    return static_cast<int>(index);
  }
  void UnregisterFile(int registered) override {
    int none = -1;
    ::io_uring_register_files_update(&ring_, static_cast<unsigned>(registered), &none, 1);
    files_[registered] = -1;
  }

  absl::Status RegisterBuffers(std::span<std::byte> memory) override {
    if (buffers_error_ != 0) {
      return EnvironmentError(WhyNotRegistered(buffers_error_, memory.size()));
    }
    const size_t num_needed = (memory.size() + kBufferBytesMax - 1) / kBufferBytesMax;
    const auto num_free = static_cast<size_t>(
        std::ranges::count_if(buffers_, [](const auto& buffer) { return buffer.empty(); }));
    if (num_needed > num_free) {
      return EnvironmentError(
          fmt::format("io_uring: {} MiB of buffers were not registered: {} of {} registrations are "
                      "free. Nothing to do; each transfer costs a little more CPU",
                      memory.size() >> 20, num_free, buffers_.size()));
    }
    for (size_t at = 0; at < memory.size(); at += kBufferBytesMax) {
      const auto part = memory.subspan(at, std::min(kBufferBytesMax, memory.size() - at));
      const int result = RegisterBuffer(part);
      if (result == 0) continue;
      UnregisterBuffers(memory);
      return EnvironmentError(WhyNotRegistered(-result, memory.size()));
    }
    return absl::OkStatus();
  }

  void UnregisterBuffers(std::span<std::byte> memory) override {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const bool inside = !buffers_[i].empty() && buffers_[i].data() >= memory.data() &&
                          buffers_[i].data() < memory.data() + memory.size();
      if (!inside) continue;
      const iovec none = {nullptr, 0};
      const __u64 tag = 0;
      ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(i), &none, &tag, 1);
      buffers_[i] = {};
    }
  }

  std::string name() const override {
    std::string features;
    if ((ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0) features += ", deferred completions";
    if (files_registered_) features += ", registered files";
    return features.empty() ? "io_uring" : fmt::format("io_uring ({})", features.substr(2));
  }

 private:
  IoUringPort() = default;

  // The cheapest mode first; older kernels know fewer flags and answer EINVAL.
  absl::Status OpenRing() {
    constexpr unsigned kBest =
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    constexpr std::array<unsigned, 5> kModes = {
        kBest, IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN, IORING_SETUP_SUBMIT_ALL, 0};
    int result = -EINVAL;
    for (const unsigned flags : kModes) {
      io_uring_params params;
      std::memset(&params, 0, sizeof(params));
      params.flags = flags;
      // Room for every call, cancellations of each (on request, then by a stall), and the wake-up.
      result = ::io_uring_queue_init_params(4 * kUringDepth, &ring_, &params);
      if (result != -EINVAL) break;
    }
    if (result != 0) return EnvironmentError(WhyNoIoUring(-result));
    opened_ = true;
    FOREBAY_RETURN_IF_ERROR(NeedOperations());
    return NeedSubmission();
  }

  // A seccomp profile may allow the set-up and forbid the rest.
  absl::Status NeedSubmission() {
    io_uring_sqe* const sqe = NextSqe();
    ::io_uring_prep_nop(sqe);
    ::io_uring_sqe_set_data64(sqe, kIgnoreTag);
    io_uring_cqe* cqe = nullptr;
    const int submitted = ::io_uring_submit_and_wait(&ring_, 1);
    if (submitted < 0) return EnvironmentError(WhyNoIoUring(-submitted));
    const int waited = ::io_uring_wait_cqe(&ring_, &cqe);
    if (waited < 0) return EnvironmentError(WhyNoIoUring(-waited));
    ::io_uring_cqe_seen(&ring_, cqe);
    return absl::OkStatus();
  }

  // IORING_OP_READ and WRITE came after the first kernels with io_uring, and so did this question.
  absl::Status NeedOperations() {
    io_uring_probe* const probe = ::io_uring_get_probe_ring(&ring_);
    const bool known = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_ASYNC_CANCEL) != 0;
    ::io_uring_free_probe(probe);
    if (known) return absl::OkStatus();
    return EnvironmentError(
        "io_uring: this kernel's is too old (before 5.6). A kernel from 6.1 on is advised");
  }

  void RegisterTables() {
    files_registered_ = ::io_uring_register_files_sparse(&ring_, kNumFiles) == 0;
    if (files_registered_) files_.assign(kNumFiles, -1);
    buffers_error_ = -::io_uring_register_buffers_sparse(&ring_, kNumBuffers);
    if (buffers_error_ == 0) buffers_.resize(kNumBuffers);
    // Saves a lookup per call; nothing is lost without it.
    ::io_uring_register_ring_fd(&ring_);
  }

  int RegisterBuffer(std::span<std::byte> part) {
    const auto free = std::ranges::find_if(buffers_, [](const auto& b) { return b.empty(); });
    if (free == buffers_.end()) return -ENOSPC;
    const iovec vector = {part.data(), part.size()};
    const __u64 tag = 0;
    const auto index = static_cast<unsigned>(free - buffers_.begin());
    const int result = ::io_uring_register_buffers_update_tag(&ring_, index, &vector, &tag, 1);
    if (result < 0) return result;
    *free = part;
    return 0;
  }

  void SubmitAndWait(int64_t timeout_us) {
    int result = 0;
    if (timeout_us == kNoTimeout) {
      result = ::io_uring_submit_and_wait(&ring_, 1);
    } else {
      io_uring_cqe* cqe = nullptr;
      __kernel_timespec timeout = {timeout_us / 1'000'000, timeout_us % 1'000'000 * 1000};
      result = ::io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
    }
    // An error (EINTR, EAGAIN, EBUSY) means that some were not submitted: they stay in the ring for
    // the next Run. A kernel short of memory gets a moment.
    if (result == -EAGAIN || result == -EBUSY) ::usleep(1000);
  }

  // The registration that holds all of `memory`; -1: none.
  int BufferIndex(std::span<std::byte> memory) const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const std::span<std::byte> buffer = buffers_[i];
      if (memory.data() >= buffer.data() &&
          memory.data() + memory.size() <= buffer.data() + buffer.size()) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  io_uring_sqe* NextSqe() {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {
      // Only a kernel that took nothing at the last Run (EAGAIN, EBUSY) leaves the ring full.
      ::io_uring_submit(&ring_);
      sqe = ::io_uring_get_sqe(&ring_);
    }
    FOREBAY_CHECK(sqe != nullptr);
    return sqe;
  }

  void QueueWakeRead() {
    wake_read_due_ = false;
    io_uring_sqe* const sqe = NextSqe();
    ::io_uring_prep_read(sqe, wake_fd_.get(), &wake_count_, sizeof(wake_count_), 0);
    ::io_uring_sqe_set_data64(sqe, kWakeTag);
  }

  io_uring ring_ = {};
  bool opened_ = false;
  UniqueFd wake_fd_;
  uint64_t wake_count_ = 0;
  bool wake_read_due_ = false;
  bool files_registered_ = false;
  std::vector<int> files_;  // descriptors by registration, -1: free
  int buffers_error_ = 0;
  std::vector<std::span<std::byte>> buffers_;  // by registration, empty: free
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoPort>> OpenIoUringPort() {
  return IoUringPort::Open();
}

}  // namespace forebay
