// An engine that remembers what it was asked to move.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/swap/window/step_transfers.h"

namespace forebay {

// kind, name of the file in its store, offset, length.
using Transfer = std::tuple<IoKind, std::string, int64_t, int64_t>;

// Remembers what was submitted. The order is that of two threads, so only what matters is kept.
class RecordingEngine : public Engine {
 public:
  explicit RecordingEngine(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}
  int AddFile(UniqueFd fd, std::string path) override {
    std::string name = std::filesystem::path(path).filename();
    const int file = inner_->AddFile(std::move(fd), std::move(path));
    const std::lock_guard lock(mutex_);
    names_[file] = std::move(name);
    return file;
  }
  void RemoveFile(int file) override { inner_->RemoveFile(file); }
  absl::Status RegisterBuffers(std::span<std::byte> memory) override {
    return inner_->RegisterBuffers(memory);
  }
  void UnregisterBuffers(std::span<std::byte> memory) override {
    inner_->UnregisterBuffers(memory);
  }
  std::string RegistrationNote() const override { return inner_->RegistrationNote(); }
  void Submit(IoOp& op) override {
    {
      const std::lock_guard lock(mutex_);
      transfers_.emplace_back(op.kind, names_[op.file], op.offset_bytes,
                              static_cast<int64_t>(op.buffer.size()));
    }
    inner_->Submit(op);
  }
  absl::Status Wait(IoOp& op) override { return inner_->Wait(op); }
  void WaitAny(std::span<IoOp* const> ops) override { inner_->WaitAny(ops); }
  void Cancel(IoOp& op) override { inner_->Cancel(op); }
  absl::Status Flush(int file) override { return inner_->Flush(file); }
  IoStats stats() const override { return inner_->stats(); }
  std::string name() const override { return inner_->name(); }
  bool direct() const override { return inner_->direct(); }

  // Those since the last call, sorted.
  std::vector<Transfer> Take() {
    const std::lock_guard lock(mutex_);
    std::vector<Transfer> taken;
    taken.swap(transfers_);
    std::ranges::sort(taken);
    return taken;
  }

 private:
  const std::unique_ptr<Engine> inner_;
  std::mutex mutex_;
  std::map<int, std::string> names_;
  std::vector<Transfer> transfers_;
};

inline TransferBytes BytesOf(const std::vector<Transfer>& transfers) {
  TransferBytes bytes;
  for (const auto& [kind, file, offset_bytes, num_bytes] : transfers) {
    (kind == IoKind::kRead ? bytes.read : bytes.write) += num_bytes;
  }
  return bytes;
}

}  // namespace forebay
