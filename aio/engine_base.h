// What every engine shares: the files, the queues by class, the life of an op and the counters. An
// engine derives from it and says how bytes move.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "forebay/aio/engine.h"

namespace forebay {

// First in, first out within a class; classes in their order, except that a class which was passed
// over kMaxPassedOver times goes next: so nothing starves. Intrusive: pushing and popping allocate
// nothing. Thread-compatible.
class IoQueue {
 public:
  static constexpr int kMaxPassedOver = 3;

  bool empty() const;
  void Push(IoOp& op);
  // Requires: !empty().
  IoOp& Pop();

 private:
  friend class EngineBase;
  static constexpr int kNumClasses = 3;
  struct Lane {
    IoOp* first = nullptr;
    IoOp* last = nullptr;
    int passed_over = 0;
  };
  int ChooseLane() const;
  std::array<Lane, kNumClasses> lanes_;
};

// Thread-safe.
class EngineBase : public Engine {
 public:
  int AddFile(UniqueFd fd, std::string path) override;
  void RemoveFile(int file) override;
  void Submit(IoOp& op) override;
  absl::Status Wait(IoOp& op) override;
  absl::Status Flush(int file) override;
  IoStats stats() const override;

 protected:
  // An op to work on, and its file.
  struct Job {
    IoOp* op = nullptr;
    int fd = -1;
    std::string_view path;  // valid until Complete
  };

  // Waits for an op; none (op == nullptr) once BeginStop was called and the queues are empty.
  Job TakeNext();
  // Ends `job`: after this call the op belongs to its owner again.
  void Complete(const Job& job, absl::Status status);
  void BeginStop();

  // One fdatasync: 0 or -errno.
  virtual int FlushCall(int fd, std::string_view path) = 0;

 private:
  struct File {
    UniqueFd fd;
    std::string path;
    int num_pending = 0;
    bool flush_failed = false;
  };
  File& FileAt(int file);  // requires mutex_

  mutable std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable completed_;
  std::deque<File> files_;  // references stay valid while files are added
  IoQueue queue_;
  bool stopping_ = false;
  IoStats stats_;
};

}  // namespace forebay
