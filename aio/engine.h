// Moves bytes between one range of a file and one buffer, asynchronously. The seam through which
// all bulk disk traffic passes: real engines and fault injectors implement the same interface.
//
// Not for: knowing what the bytes mean (swap/), or small files (base/file.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// O_DIRECT wants offset, length and address to be multiples of this on every device we support.
inline constexpr int64_t kIoAlignBytes = 4096;

enum class IoKind : uint8_t { kRead, kWrite };

// Served in this order; first in, first out within a class.
enum class IoClass : uint8_t { kDemandRead, kPrefetch, kWriteBack };

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
  IoClass io_class = IoClass::kDemandRead;
  int file = -1;             // from Engine::AddFile
  int64_t offset_bytes = 0;  // multiple of kIoAlignBytes
  std::span<std::byte>
      buffer;  // address and length multiples of kIoAlignBytes; a write only reads it

  bool pending() const { return state_.load(std::memory_order_acquire) == State::kPending; }

 private:
  friend class EngineBase;
  friend class IoQueue;
  enum class State : uint8_t { kIdle, kPending, kDone };
  std::atomic<State> state_{State::kIdle};
  absl::Status status_;
  IoOp* next_ = nullptr;  // intrusive queue link: submitting allocates nothing
};

struct IoStats {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  int64_t read_ops = 0;
  int64_t write_ops = 0;
  int64_t flushes = 0;
};

struct EngineOptions {
  int num_threads = 2;  // I/O threads of the threads engine
};

// Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;

  // Takes over an open descriptor and returns its number for IoOp::file. `path` is for messages.
  virtual int AddFile(UniqueFd fd, std::string path) = 0;
  // Closes a file. Requires: none of its ops is pending. Its number is not used again.
  virtual void RemoveFile(int file) = 0;

  // Queues `op` and returns at once. Every completion is checked: short transfers continue where
  // they stopped, EAGAIN and EINTR are retried (bounded), anything else becomes the op's error.
  virtual void Submit(IoOp& op) = 0;

  // Blocks until `op` is complete and returns its result. An op that was never submitted, or was
  // already waited for, is OK. StorageError (names file, offset, length, errno and the fix);
  // CorruptError when the file ends before the range.
  virtual absl::Status Wait(IoOp& op) = 0;

  // Makes everything written to `file` and completed before this call durable. A failure is final:
  // every later flush of the file fails too (docs/architecture.md, "Durability").
  virtual absl::Status Flush(int file) = 0;

  virtual IoStats stats() const = 0;
  // "threads (2)": for logs.
  virtual std::string name() const = 0;
};

// pread/pwrite on `num_threads` threads of its own.
std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options);

struct DirectFileOptions {
  bool create = false;  // O_CREAT | O_EXCL; else the file must exist
  // Reserved with fallocate, so that writing cannot meet ENOSPC. With create: the file's size.
  // Without: at least so many; a shorter file grows, a longer one stays; 0: the file stays as it
  // is.
  int64_t size_bytes = 0;
};
struct DirectFile {
  UniqueFd fd;
  bool direct =
      false;  // false: the file system refused O_DIRECT (or lied: tmpfs); page cache is used
  std::string why_not_direct;
};
// Opens (or creates, 0600) a file for an engine with O_DIRECT, never through a symbolic link, and
// proves by a real transfer that direct I/O works. DoesNotFitError when the space cannot be
// reserved (a file it made is removed again, one it found has its old size), BadInputError when the
// file does not exist, StorageError otherwise.
absl::StatusOr<DirectFile> OpenDirectFile(const std::string& path,
                                          const DirectFileOptions& options);

}  // namespace forebay
