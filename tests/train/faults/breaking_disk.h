// A disk that breaks while a run uses it, and an observer that chooses the moment.
#pragma once

#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/tests/train/faults/toy_run.h"

namespace forebay {

// Writes nothing more once it is broken, but reads.
class BreakingDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kWrite && broken) return -EIO;
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }

  std::atomic<bool> broken = false;
};

// `disk` is borrowed for the run.
inline TrainEnvironment OnDisk(DiskCalls* disk) {
  TrainEnvironment environment;
  environment.open_engine = [disk](const EngineOptions& options, const std::vector<std::string>&) {
    OpenedEngine opened;
    opened.engine = CreateThreadsEngine(options, disk);
    opened.line = "a disk that breaks";
    return absl::StatusOr<OpenedEngine>(std::move(opened));
  };
  return environment;
}

// Keeps what it is told, and lets something happen after the second step.
class NotingObserver : public SilentObserver {
 public:
  explicit NotingObserver(std::function<void()> after_step_2)
      : after_step_2_(std::move(after_step_2)) {}

  void OnStep(const Json& metrics) override {
    steps.push_back(metrics["step"].get<int64_t>());
    if (steps.back() == 2) after_step_2_();
  }
  void OnNote(const std::string& line) override { notes.push_back(line); }

  std::vector<std::string> notes;
  std::vector<int64_t> steps;

 private:
  const std::function<void()> after_step_2_;
};

}  // namespace forebay
