// Aligned host memory charged to a budget: what disk transfers and kernels work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/memory/page_tally.h"

namespace forebay {

struct HostBufferOptions {
  PageKind best_pages = PageKind::kReservedHuge;  // no better ones are tried
  int numa_node = -1;        // where the memory should be (memory/numa.h); -1: anywhere
  Device* device = nullptr;  // pins the memory for its copies; must outlive the buffer
};

// Owns an anonymous mapping: zeroed, every page present, 4 KiB-aligned (2 MiB-aligned when it is
// that large), not inherited by forked children, not in core dumps. Its whole 2 MiB are in the best
// pages that the machine gives (reserved huge pages, transparent ones, 4 KiB), what is left in
// 4 KiB pages, so that it holds what it is charged and no more. Move-only; charged to `budget`
// while it lives.
//
// Pages, NUMA node and pinning are best effort: what was not had is in pages() with the reason, and
// in the budget's sum.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;

  // What a buffer of `size_bytes` costs its budget: whole pages of 4 KiB.
  static constexpr int64_t ChargedBytes(int64_t size_bytes) {
    return (size_bytes + kBasePageBytes - 1) / kBasePageBytes * kBasePageBytes;
  }

  // `budget` must outlive the buffer; ChargedBytes(size_bytes) is charged to it. `purpose` is
  // copied. 0 bytes: an empty buffer. OutOfMemoryError.
  static absl::StatusOr<HostBuffer> Create(MemoryBudget* budget, std::string_view purpose,
                                           int64_t size_bytes,
                                           const HostBufferOptions& options = {});

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }
  template <typename T>
  std::span<T> As() const {
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(size_bytes_) / sizeof(T)};
  }

  // What most of the buffer is in.
  PageKind page_kind() const;
  const PageTally& pages() const { return pages_; }
  // The device of the options can copy to and from it beside the computation.
  bool pinned() const { return !pinned_.memory().empty(); }

  // For registration with the I/O engine: the buffer in pieces of at most 1 GiB, such that a
  // transfer of at most `unit_bytes` at a multiple of it lies within one (memory/io_pieces.h).
  std::vector<std::span<std::byte>> IoPieces(int64_t unit_bytes = kBasePageBytes) const;

 private:
  void Free();
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
  int64_t huge_bytes_ = 0;  // from the start, in huge pages as far as there are any
  PageTally pages_;
  PinnedRegion pinned_;
  MemoryBudget* budget_ = nullptr;
  std::string purpose_;
};

}  // namespace forebay
