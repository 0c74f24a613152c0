// Aligned host memory charged to a budget: what disk transfers and kernels work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"

namespace forebay {

// Owns an anonymous mapping: zeroed, 4 KiB-aligned (2 MiB-aligned with transparent huge pages asked
// for when it is large enough), not inherited by forked children. Move-only; charged to `budget`
// while it lives.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;

  // `budget` must outlive the buffer; `size_bytes` rounded up to 4 KiB is charged to it. `purpose`
  // is copied. 0 bytes: an empty buffer. OutOfMemoryError.
  static absl::StatusOr<HostBuffer> Create(MemoryBudget* budget, std::string_view purpose,
                                           int64_t size_bytes);

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }
  template <typename T>
  std::span<T> As() const {
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(size_bytes_) / sizeof(T)};
  }

 private:
  void Free();
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
  MemoryBudget* budget_ = nullptr;
  std::string purpose_;
};

}  // namespace forebay
