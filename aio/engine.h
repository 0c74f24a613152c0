// Moves bytes between one range of a file and one buffer, asynchronously. The seam through which
// all bulk disk traffic passes: real engines and fault injectors implement the same interface.
// open_engine.h chooses the engine that this machine can run.
//
// Not for: knowing what the bytes mean (swap/), or small files (base/file.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// O_DIRECT wants offset, length and address to be multiples of this on every device we support.
inline constexpr int64_t kIoAlignBytes = 4096;

// A flush makes everything durable that was written to the file and completed before it was
// submitted; it has neither offset nor buffer.
enum class IoKind : uint8_t { kRead, kWrite, kFlush };

// Served in this order; first in, first out within a class. device_queue.h has the bound within
// which a lower class gets its turn all the same.
// kDemand: what somebody waits for, a record of a commit too. kPrefetch: what will be computed
// with. kUpdateRead: what will be updated, which is far more and may come later.
enum class IoClass : uint8_t { kDemand, kPrefetch, kUpdateRead, kWriteBack };

class Engine;

// One transfer. The caller owns it and its buffer; both must outlive the completion (the destructor
// checks it). Reusable after Wait. Fields are set before Submit and not touched until Wait returns.
class IoOp {
 public:
  IoOp() = default;
  ~IoOp();
  IoOp(const IoOp&) = delete;
  IoOp& operator=(const IoOp&) = delete;

  IoKind kind = IoKind::kRead;
  IoClass io_class = IoClass::kDemand;
  int file = -1;             // from Engine::AddFile
  int64_t offset_bytes = 0;  // multiple of align_bytes
  std::span<std::byte>
      buffer;  // address and length multiples of align_bytes; a write only reads it
  // Less for a file that is known to allow it: 1 of one without O_DIRECT.
  int64_t align_bytes = kIoAlignBytes;

  bool pending() const { return state_.load(std::memory_order_acquire) == State::kPending; }

 private:
  friend class DeviceQueue;
  friend class EngineBase;
  enum class State : uint8_t { kIdle, kPending, kDone };
  enum class Cancelled : uint8_t { kNo, kOnRequest, kBecauseStalled };
  int64_t left_bytes() const { return static_cast<int64_t>(buffer.size()) - taken_bytes_; }

  std::atomic<State> state_{State::kIdle};
  // Below: guarded by the engine's lock while the op is pending. All of an op's bookkeeping lies in
  // the op, so that submitting allocates nothing.
  Cancelled cancelled_ = Cancelled::kNo;
  bool queued_ = false;       // in its device's queue, so part of it has not started yet
  bool waited_for_ = false;   // a thread sleeps until it is done
  int num_in_flight_ = 0;     // pieces
  int64_t taken_bytes_ = 0;   // from the front: started, and perhaps complete
  int64_t progress_us_ = 0;   // when it was submitted, or a piece of it last started or ended
  int64_t submitted_ns_ = 0;  // while a trace is recorded (base/trace.h); 0: before
  int64_t started_ns_ = 0;    // the same, of its first piece
  int64_t total_bytes_ = 0;   // of a read: IoStats::submitted_read_bytes with it
  absl::Status status_;
  IoOp* next_ = nullptr;
};

struct IoStats {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  // Counts a read when it is submitted. So what is read ahead at the end of a step belongs to that
  // step, however fast the disk is.
  int64_t submitted_read_bytes = 0;
  int64_t read_ops = 0;
  int64_t write_ops = 0;
  int64_t flushes = 0;
  // Time during which reads, or writes, were in flight; of the time with both, each has half.
  // Summed over the devices.
  int64_t read_us = 0;
  int64_t write_us = 0;
  // With EngineOptions::time_submissions: calls that were handed to the kernel, and how long that
  // took the thread that did it. Zeros for the threads engine, whose calls are the transfers.
  int64_t submitted_calls = 0;
  int64_t submit_ns = 0;
};

enum class EngineKind : uint8_t { kAuto, kIoUring, kLibaio, kThreads, kBuffered };

// Who drives an asynchronous engine (io_uring, libaio); the threads engine has its own threads.
enum class RingDrive : uint8_t {
  // A thread of its own submits and reaps: transfers go on while every caller computes.
  kOwnThread,
  // Whoever waits does: nothing is submitted or reaped but in Wait and WaitAny, which costs no
  // hand-over between threads. For callers that do nothing but I/O. Kernels want a ring to be used
  // by one thread, so all calls are made by the thread that created the engine.
  kWaiter,
};

struct EngineOptions {
  EngineKind engine = EngineKind::kAuto;  // what OpenEngine begins with
  bool strict = false;                    // OpenEngine refuses to take anything less
  // Where a folder has a file of this name, OpenEngine tries engines by reading a block of it, and
  // writes nothing there. Empty: it writes a scratch file everywhere.
  std::string file_to_read;
  int64_t offset_to_read_bytes = 0;  // of that block
  int num_threads = 2;               // I/O threads of the threads engine
  // The longest transfer that the kernel is asked for in one call: longer ops are cut into pieces
  // of this, so that the classes take turns and the caps hold. 0: what suits the engine.
  int64_t block_bytes = 0;
  // Started and not complete, for each device. More only adds latency.
  int64_t max_in_flight_bytes = int64_t{32} << 20;
  // The same while the next to start is a write; 0: as above.
  int64_t max_writing_bytes = 0;
  // Reads and writes of one device take turns of this length (device_queue.h).
  int64_t burst_bytes = int64_t{32} << 20;
  // A device that completes nothing for so long is reported, and for so long given up: what it was
  // asked for is cancelled.
  double stall_report_s = 15;
  double stall_limit_s = 300;
  RingDrive drive = RingDrive::kOwnThread;
  // Hands calls to the kernel apart from waiting, and times it (IoStats::submit_ns): one system
  // call more for each batch.
  bool time_submissions = false;
  // Takes one line about a device that stalls. Called by the thread that waits for it, without a
  // lock; must not throw and must not call the engine. May be empty.
  std::function<void(const std::string& line)> report;
};

// What of the buffers that were to be registered with an engine, or with several, is not.
struct RegistrationGap {
  int64_t wanted_bytes = 0;
  int64_t refused_bytes = 0;  // of these
  int error_number = 0;       // of the first refusal

  void Add(const RegistrationGap& other);
  // One line with the limit and the fix. Empty when nothing is missing.
  std::string Note() const;
};

// Thread-safe.
class Engine {
 public:
  // Completes what is queued and in flight first: the kernel must be done with every buffer before
  // its owner may free it. A device that stalls is waited for no longer than stall_limit_s.
  virtual ~Engine() = default;

  // Takes over an open descriptor and returns its number for IoOp::file. `path` is for messages.
  virtual int AddFile(UniqueFd fd, std::string path) = 0;
  // Closes a file. Requires: none of its ops is pending. Its number may be given to another.
  virtual void RemoveFile(int file) = 0;

  // Tells the kernel where the buffers lie, once instead of at every transfer (io_uring; the other
  // engines have no use for it and say OK). Optional: after an error, which names the limit and the
  // fix, transfers from and to `memory` work as before, with a little more CPU. EnvironmentError.
  // Requires: none of `memory` is registered. BufferRegistration pairs it with its end.
  virtual absl::Status RegisterBuffers(std::span<std::byte> memory) = 0;
  // Must precede the freeing of registered memory, whose address may come to mean something else.
  // Requires: no pending op uses it. Memory that is not registered is OK.
  virtual void UnregisterBuffers(std::span<std::byte> memory) = 0;
  // How much of what was to be registered, and was not unregistered since, is not, with the limit
  // and the fix: one line for all buffers together. Empty when all is.
  virtual std::string RegistrationNote() const = 0;
  // The same in figures, for who sums it over several engines.
  virtual RegistrationGap registration_gap() const { return {}; }

  // Queues `op` and returns at once. Every completion is checked: short transfers continue where
  // they stopped, EAGAIN and EINTR are retried (bounded), anything else becomes the op's error.
  virtual void Submit(IoOp& op) = 0;

  // Blocks until `op` is complete and returns its result. An op that was never submitted, or was
  // already waited for, is OK. StorageError (names file, device, offset, length, errno and the
  // fix); CorruptError when the file ends before the range; InterruptedError after Cancel.
  // Does not hang: a device that stalls makes it a StorageError after stall_limit_s. If the kernel
  // kept the transfer even then, the message says so, and the buffer must not be used for anything
  // else, as a late transfer may still change it; unmapping it is safe.
  virtual absl::Status Wait(IoOp& op) = 0;

  // Blocks until at least one of `ops` is not pending; Wait then returns its result at once. For
  // callers that keep many in flight and use each again as soon as it is complete. Watches over
  // stalls as Wait does. Returns at once when `ops` is empty.
  virtual void WaitAny(std::span<IoOp* const> ops) = 0;

  // Asks for an early end of a pending op: what has not started does not start, what has is taken
  // back where the kernel can. The op stays pending until then: Wait follows as always.
  virtual void Cancel(IoOp& op) = 0;

  // Submits a flush and waits for it. A failure is final: every later flush of the file fails too
  // (docs/design/store.md, "While it runs").
  virtual absl::Status Flush(int file) = 0;

  virtual IoStats stats() const = 0;
  // "threads (2)": for logs.
  virtual std::string name() const = 0;
  // Whether files for this engine are to be opened with O_DIRECT (DirectFileOptions::direct).
  virtual bool direct() const = 0;
};

// pread/pwrite on `num_threads` threads of its own; needs nothing of the kernel.
std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options);

// One ring, submitted to and reaped by one thread. EnvironmentError where the kernel, a sysctl or a
// seccomp profile refuses it; the message says which, and the fix.
absl::StatusOr<std::unique_ptr<Engine>> CreateIoUringEngine(const EngineOptions& options);

// Linux native AIO on one thread: what containers still allow when they forbid io_uring. For
// O_DIRECT alone, since its buffered transfers are synchronous. EnvironmentError likewise.
absl::StatusOr<std::unique_ptr<Engine>> CreateLibaioEngine(const EngineOptions& options);

struct DirectFileOptions {
  bool create = false;     // O_CREAT | O_EXCL; else the file must exist
  bool read_only = false;  // O_RDONLY. Requires: neither `create` nor `size_bytes`
  // Reserved with fallocate, so that writing cannot meet ENOSPC. With create: the file's size.
  // Without: at least so many; a shorter file grows, a longer one stays; 0: the file stays as it
  // is.
  int64_t size_bytes = 0;
  // false: the file gets its length and no space, for files that are never filled as far
  // (folding_engine.h).
  bool reserve = true;
  bool direct = true;  // false: do not even try
};
// Whose the space of a file is, from best to worst.
enum class FileSpace : uint8_t {
  kReserved,     // the file's, or none was asked for
  kOnceWritten,  // the file's where it was written, since the file system has no fallocate
  kNever,        // written over, it takes space anew: the file system copies on write
};
struct DirectFile {
  UniqueFd fd;
  bool direct =
      false;  // false: the file system refused O_DIRECT (or lied: tmpfs); page cache is used
  std::string why_not_direct;
  // Whose the space is that was to be reserved.
  FileSpace space = FileSpace::kReserved;
  // Why a write may meet ENOSPC all the same, and what to do; "" with kReserved.
  std::string why_unreserved;
};
// Switches O_DIRECT on where the kernel offers it at our alignment; else says why not.
std::string SwitchToDirect(int fd);
// Addresses have to be multiples of this in direct transfers of the file: the kernel says it (since
// Linux 6.1; often 4 or 512), else it is kIoAlignBytes.
int64_t DirectMemoryAlign(int fd);

// Opens (or creates, 0600) a file for an engine with O_DIRECT, never through a symbolic link, and
// proves by a real transfer that direct I/O works; that a file which was there cannot be read is
// left to who reads it. DoesNotFitError when the space cannot be
// reserved (a file it made is removed again, one it found has its old size), BadInputError when the
// file does not exist, StorageError otherwise.
absl::StatusOr<DirectFile> OpenDirectFile(const std::string& path,
                                          const DirectFileOptions& options);

}  // namespace forebay
