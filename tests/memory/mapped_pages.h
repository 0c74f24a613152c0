// Mappings for tests, and what touching them costs.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/memory/page_mapping.h"
#include "gtest/gtest.h"

namespace forebay {

constexpr int64_t kMib = int64_t{1} << 20;

// Unmaps at its end.
class Mapped {
 public:
  Mapped(int64_t size_bytes, PageKind best) : mapping_(MapPages(size_bytes, {best, -1})) {
    EXPECT_NE(mapping_.data, nullptr) << mapping_.error_number;
  }
  ~Mapped() {
    if (mapping_.data != nullptr) UnmapPages(mapping_.data, mapping_.size_bytes);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  const PageMapping* operator->() const { return &mapping_; }
  std::span<std::byte> bytes() const {
    return {mapping_.data, static_cast<size_t>(mapping_.size_bytes)};
  }
  std::span<std::byte> body() const {
    return bytes().first(static_cast<size_t>(mapping_.huge_bytes));
  }

 private:
  PageMapping mapping_;
};

inline bool IsZeroed(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

inline int64_t PageFaults() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// What a first write to each page costs.
// Not instrumented: a sanitizer's shadow of these bytes faults too.
__attribute__((no_sanitize("address", "thread"))) inline void Touch(volatile std::byte* data,
                                                                    int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBasePageBytes) data[at] = std::byte{1};
}

inline int64_t FaultsOfTouching(std::span<std::byte> bytes) {
  const int64_t before = PageFaults();
  Touch(bytes.data(), static_cast<int64_t>(bytes.size()));
  return PageFaults() - before;
}

}  // namespace forebay
