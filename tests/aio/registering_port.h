// A port that knows which memory is registered at every moment: a transfer from or to memory that
// was given back, or a registration that outlives its memory, shows here and not as a wrong byte
// somewhere else.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/io_port.h"
#include "forebay/aio/transfer.h"

namespace forebay {

// What a RegisteringPort saw. Thread-safe.
class RegistrationLog {
 public:
  // With which errno a registration is refused; 0: it is not. Set before the port is used.
  std::function<int(std::span<std::byte>)> refuse;

  // Whether the port has any use for buffers. Set likewise.
  bool registers_buffers = true;

  int64_t registered_bytes() const { return Read(registered_bytes_); }
  int64_t most_registered_bytes() const { return Read(most_registered_bytes_); }
  // Transfers within one registered piece, and others.
  int64_t num_inside() const { return Read(num_inside_); }
  int64_t num_outside() const { return Read(num_outside_); }
  int64_t longest_outside_bytes() const { return Read(longest_outside_bytes_); }
  // "" or what was done that must not be.
  std::string problem() const {
    const std::lock_guard lock(mutex_);
    return problem_;
  }

  int Register(std::span<std::byte> memory) {
    const std::lock_guard lock(mutex_);
    const int error_number = refuse ? refuse(memory) : 0;
    if (error_number != 0) return error_number;
    for (const std::span<std::byte> piece : pieces_) {
      if (Overlap(piece, memory)) problem_ = "memory was registered twice";
    }
    pieces_.push_back(memory);
    registered_bytes_ += static_cast<int64_t>(memory.size());
    most_registered_bytes_ = std::max(most_registered_bytes_, registered_bytes_);
    return 0;
  }
  void Unregister(std::span<std::byte> memory) {
    const std::lock_guard lock(mutex_);
    for (const std::span<std::byte> call : in_flight_) {
      if (Overlap(call, memory)) problem_ = "memory was unregistered under a transfer";
    }
    std::erase_if(pieces_, [&](std::span<std::byte> piece) {
      const bool inside = Overlap(piece, memory);
      if (inside && !IsMapped(piece)) problem_ = "memory was unmapped before it was unregistered";
      if (inside) registered_bytes_ -= static_cast<int64_t>(piece.size());
      return inside;
    });
  }
  void Begin(std::span<std::byte> buffer) {
    const std::lock_guard lock(mutex_);
    in_flight_.push_back(buffer);
    const bool inside = std::ranges::any_of(pieces_, [&](std::span<std::byte> piece) {
      return piece.data() <= buffer.data() &&
             buffer.data() + buffer.size() <= piece.data() + piece.size();
    });
    ++(inside ? num_inside_ : num_outside_);
    if (!inside) {
      longest_outside_bytes_ =
          std::max(longest_outside_bytes_, static_cast<int64_t>(buffer.size()));
    }
  }
  void End(std::span<std::byte> buffer) {
    const std::lock_guard lock(mutex_);
    in_flight_.erase(std::ranges::find_if(
        in_flight_, [&](std::span<std::byte> call) { return call.data() == buffer.data(); }));
  }

 private:
  static bool IsMapped(std::span<std::byte> memory) {
    std::vector<unsigned char> present(memory.size() / kIoAlignBytes + 1);
    return ::mincore(memory.data(), memory.size(), present.data()) == 0;
  }
  int64_t Read(const int64_t& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  mutable std::mutex mutex_;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<std::span<std::byte>> in_flight_;
  int64_t registered_bytes_ = 0;
  int64_t most_registered_bytes_ = 0;
  int64_t num_inside_ = 0;
  int64_t num_outside_ = 0;
  int64_t longest_outside_bytes_ = 0;
  std::string problem_;
};

class RegisteringPort : public IoPort {
 public:
  RegisteringPort(std::unique_ptr<IoPort> inner, std::shared_ptr<RegistrationLog> log)
      : inner_(std::move(inner)),
        log_(std::move(log)),
        calls_(static_cast<size_t>(inner_->depth())) {}

  int depth() const override { return inner_->depth(); }
  void Queue(const Call& call) override {
    calls_[call.tag] = call.kind == IoKind::kFlush ? std::span<std::byte>() : call.buffer;
    if (call.kind != IoKind::kFlush) log_->Begin(call.buffer);
    inner_->Queue(call);
  }
  void Cancel(uint32_t tag) override { inner_->Cancel(tag); }
  void Submit() override { inner_->Submit(); }
  int Run(std::span<Result> results, int64_t timeout_us) override {
    const int count = inner_->Run(results, timeout_us);
    for (const Result& result : results.first(static_cast<size_t>(count))) {
      if (!calls_[result.tag].empty()) log_->End(calls_[result.tag]);
    }
    return count;
  }
  void Wake() override { inner_->Wake(); }
  int RegisterFile(int fd) override { return inner_->RegisterFile(fd); }
  void UnregisterFile(int registered) override { inner_->UnregisterFile(registered); }
  bool registers_buffers() const override { return log_->registers_buffers; }
  int RegisterBuffers(std::span<std::byte> memory) override {
    const int refused = log_->Register(memory);
    if (refused != 0) return refused;
    const int error_number = inner_->RegisterBuffers(memory);
    if (error_number != 0) log_->Unregister(memory);
    return error_number;
  }
  void UnregisterBuffers(std::span<std::byte> memory) override {
    log_->Unregister(memory);
    inner_->UnregisterBuffers(memory);
  }
  int64_t NowUs() const override { return inner_->NowUs(); }
  void AbandonCalls() override { inner_->AbandonCalls(); }
  std::string name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<IoPort> inner_;
  const std::shared_ptr<RegistrationLog> log_;
  std::vector<std::span<std::byte>> calls_;  // by tag
};

// An engine over the port that `open_port` makes, with its registrations watched; nullptr where
// there is no such port.
inline std::unique_ptr<Engine> CreateRegisteringEngine(const EngineOptions& options,
                                                       std::shared_ptr<RegistrationLog> log,
                                                       const PortFactory& open_port) {
  auto engine =
      CreateRingEngine(options, options.drive, [&]() -> absl::StatusOr<std::unique_ptr<IoPort>> {
        absl::StatusOr<std::unique_ptr<IoPort>> port = open_port();
        if (!port.ok()) return port.status();
        return std::make_unique<RegisteringPort>(*std::move(port), log);
      });
  return engine.ok() ? *std::move(engine) : nullptr;
}

}  // namespace forebay
