// For plans, also in builds without CUDA code.
#pragma once

#include <cstdint>

namespace forebay::cuda {

// Bytes of the context's scratch that attention needs: one fp32 for each token and head.
constexpr int64_t AttentionScratchBytes(int64_t tokens, int64_t heads) {
  return tokens * heads * static_cast<int64_t>(sizeof(float));
}

}  // namespace forebay::cuda
