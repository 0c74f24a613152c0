// The parts of a context's scratch memory. Each operator has all of it, as its stream is in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forebay/base/check.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/model/cuda/scratch_sizes.h"

namespace forebay::cuda {

// Hands out the scratch memory from its beginning.
class ScratchParts {
 public:
  explicit ScratchParts(const Context& context)
      : next_(context.scratch().address()), left_bytes_(context.scratch().size_bytes()) {}

  // 256-byte aligned.
  template <typename T>
  T* Take(int64_t num_elems) {
    const int64_t size_bytes = AlignedScratch(num_elems * static_cast<int64_t>(sizeof(T)));
    FOREBAY_CHECK(size_bytes <= left_bytes_);
    std::byte* const part = next_;
    next_ += size_bytes;
    left_bytes_ -= size_bytes;
    return reinterpret_cast<T*>(part);
  }

 private:
  std::byte* next_;
  int64_t left_bytes_;
};

}  // namespace forebay::cuda
