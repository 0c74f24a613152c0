#include "forebay/aio/buffer_registration.h"

#include <utility>

namespace forebay {

BufferRegistration::BufferRegistration(Engine* engine, std::vector<std::span<std::byte>> pieces)
    : engine_(engine), pieces_(std::move(pieces)) {
  for (const std::span<std::byte> piece : pieces_) {
    status_.Update(engine_->RegisterBuffers(piece));
  }
}

BufferRegistration::BufferRegistration(BufferRegistration&& other) noexcept {
  *this = std::move(other);
}

BufferRegistration& BufferRegistration::operator=(BufferRegistration&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  engine_ = std::exchange(other.engine_, nullptr);
  pieces_ = std::exchange(other.pieces_, {});
  status_ = std::exchange(other.status_, absl::OkStatus());
  return *this;
}

void BufferRegistration::Reset() {
  if (engine_ == nullptr) return;
  for (const std::span<std::byte> piece : pieces_) engine_->UnregisterBuffers(piece);
  engine_ = nullptr;
  pieces_.clear();
  status_ = absl::OkStatus();
}

}  // namespace forebay
