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
// Of at most 1 GiB each. The kernel would take 16384; its table has a pointer for each.
constexpr int kNumBuffers = kMaxRegisteredBuffers;
// The kernel refuses longer registrations.
constexpr size_t kBufferBytesMax = size_t{1} << 30;

// Tags that are no call's.
constexpr uint64_t kWakeTag = uint64_t{1} << 32;
constexpr uint64_t kIgnoreTag = uint64_t{1} << 33;

// Best effort, level 0 for what somebody waits for, 4 (the default) for the rest. Schedulers that
// know priorities (mq-deadline, bfq) honour it; "none" does not look.
uint16_t PriorityOf(IoClass io_class) {
  constexpr uint16_t kBestEffort = 2 << 13;
  return kBestEffort | (io_class == IoClass::kDemand ? 0 : 4);
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

  bool registers_buffers() const override { return true; }
  int RegisterBuffers(std::span<std::byte> memory) override {
    for (size_t at = 0; at < memory.size(); at += kBufferBytesMax) {
      const auto part = memory.subspan(at, std::min(kBufferBytesMax, memory.size() - at));
      const int error_number = buffers_error_ != 0 ? buffers_error_ : RegisterBuffer(part);
      if (error_number == 0) continue;
      UnregisterBuffers(memory.first(at));
      return error_number;
    }
    return 0;
  }

  void UnregisterBuffers(std::span<std::byte> memory) override {
    const auto first = FirstBufferAt(memory.data());
    auto end = first;
    for (; end != buffers_.end() && end->memory.data() < memory.data() + memory.size(); ++end) {
      SetBuffer(end->index, {});
      free_buffers_.push_back(end->index);
    }
    buffers_.erase(first, end);
  }

  std::string name() const override {
    std::string features;
    if ((ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0) features += ", deferred completions";
    if (files_registered_) features += ", registered files";
    return features.empty() ? "io_uring" : fmt::format("io_uring ({})", features.substr(2));
  }

 private:
  struct Buffer {
    std::span<std::byte> memory;
    int index = -1;  // of the kernel's table
  };

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
    ring_.ring_fd = ring_.enter_ring_fd = AboveStandardStreams(ring_.ring_fd);
    if (ring_.ring_fd < 0) return EnvironmentError(WhyNoIoUring(errno));
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
    for (int i = kNumBuffers - 1; buffers_error_ == 0 && i >= 0; --i) free_buffers_.push_back(i);
    // Not io_uring_register_ring_fd, which saves next to nothing: liburing takes it back with the
    // number that it has in the thread that ends the ring, where that may be another ring's.
  }

  int SetBuffer(int index, std::span<std::byte> memory) {
    const iovec vector = {memory.data(), memory.size()};
    const __u64 tag = 0;
    return ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &vector,
                                                  &tag, 1);
  }

  // Returns errno.
  int RegisterBuffer(std::span<std::byte> memory) {
    if (free_buffers_.empty()) return E2BIG;
    const auto place = FirstBufferAt(memory.data());
    const std::byte* const end = memory.data() + memory.size();
    // Else the memory of a buffer was given back with its registration, and the kernel would move
    // bytes to where it was.
    FOREBAY_CHECK(place == buffers_.end() || place->memory.data() >= end);
    FOREBAY_CHECK(place == buffers_.begin() || EndOf(*(place - 1)) <= memory.data());
    const int result = SetBuffer(free_buffers_.back(), memory);
    if (result < 0) return -result;
    buffers_.insert(place, {memory, free_buffers_.back()});
    free_buffers_.pop_back();
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
  int BufferIndex(std::span<std::byte> memory) {
    const auto behind = FirstBufferAt(memory.data() + 1);
    if (behind == buffers_.begin()) return -1;
    const Buffer& buffer = *(behind - 1);
    return memory.data() + memory.size() <= EndOf(buffer) ? buffer.index : -1;
  }

  static const std::byte* EndOf(const Buffer& buffer) {
    return buffer.memory.data() + buffer.memory.size();
  }
  // The first that begins at `address` or behind it.
  std::vector<Buffer>::iterator FirstBufferAt(const std::byte* address) {
    return std::ranges::lower_bound(buffers_, address, {},
                                    [](const Buffer& buffer) { return buffer.memory.data(); });
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
    // Where nobody looks, and what is never freed: a ring that is closed ends its calls later on.
    static uint64_t wake_count;
    ::io_uring_prep_read(sqe, wake_fd_.get(), &wake_count, sizeof(wake_count), 0);
    ::io_uring_sqe_set_data64(sqe, kWakeTag);
  }

  io_uring ring_ = {};
  bool opened_ = false;
  UniqueFd wake_fd_;
  bool wake_read_due_ = false;
  bool files_registered_ = false;
  std::vector<int> files_;         // descriptors by registration, -1: free
  int buffers_error_ = 0;          // why no buffer can be registered
  std::vector<Buffer> buffers_;    // by address, without overlap
  std::vector<int> free_buffers_;  // indices
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoPort>> OpenIoUringPort() {
  return IoUringPort::Open();
}

}  // namespace forebay
