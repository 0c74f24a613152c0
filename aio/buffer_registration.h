// Memory that an engine knows (Engine::RegisterBuffers) for as long as an object lives.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "forebay/aio/engine.h"

namespace forebay {

// Move-only. Must end after the last transfer from or to its memory and before that memory is
// unmapped: declare it behind the buffer. `engine` must outlive it. Thread-compatible.
class BufferRegistration {
 public:
  BufferRegistration() = default;
  // Registers every piece. Best effort: those that are refused work too, with a little more CPU
  // (status() and Engine::RegistrationNote say why).
  BufferRegistration(Engine* engine, std::vector<std::span<std::byte>> pieces);
  ~BufferRegistration() { Reset(); }
  BufferRegistration(BufferRegistration&& other) noexcept;
  BufferRegistration& operator=(BufferRegistration&& other) noexcept;

  // Ends it early.
  void Reset();
  // OK, or why the first piece that was refused was.
  const absl::Status& status() const { return status_; }

 private:
  Engine* engine_ = nullptr;  // nullptr: of nothing
  std::vector<std::span<std::byte>> pieces_;
  absl::Status status_;
};

}  // namespace forebay
