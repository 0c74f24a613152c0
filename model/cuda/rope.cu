// Rotary position embeddings. A block takes a token, so that its threads share the cosines.
#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/model/cuda/launch.h"

namespace forebay::cuda {
namespace {

constexpr int64_t kMostThreads = 256;

template <typename T, int kCount>
__global__ void RopeKernel(RopeTable table, const int32_t* positions, int heads, float sign, T* x) {
  const int half = static_cast<int>(table.head_dim) / 2;
  const int units_of_head = half / kCount;
  const int64_t angles = static_cast<int64_t>(positions[blockIdx.x]) * half;
  T* const of_token = x + static_cast<int64_t>(blockIdx.x) * heads * table.head_dim;
  for (int unit = static_cast<int>(threadIdx.x); unit < heads * units_of_head;
       unit += static_cast<int>(blockDim.x)) {
    const int head = unit / units_of_head;
    const int pair = unit % units_of_head * kCount;
    T* const low = of_token + int64_t{head} * table.head_dim + pair;
    float cosines[kCount];
    float sines[kCount];
    float a[kCount];
    float b[kCount];
    Load(table.cos + angles + pair, cosines);
    Load(table.sin + angles + pair, sines);
    Load(low, a);
    Load(low + half, b);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float sine = sines[i] * sign;
      const float rotated = a[i] * cosines[i] - b[i] * sine;
      b[i] = b[i] * cosines[i] + a[i] * sine;
      a[i] = rotated;
    }
    Store(a, low);
    Store(b, low + half);
  }
}

}  // namespace

absl::Status Rope(Context& context, const RopeTable& table, const int32_t* positions,
                  int64_t tokens, int64_t heads, void* x, bool inverse) {
  FOREBAY_CHECK(table.head_dim > 0 && table.head_dim % 2 == 0);
  FOREBAY_CHECK(heads * table.head_dim <= INT32_MAX);
  if (tokens == 0 || heads == 0) return absl::OkStatus();
  const int64_t half = table.head_dim / 2;
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    const bool wide = half % kWide<T> == 0 && AreAligned({x, table.cos, table.sin});
    return VisitWidth<T>(wide, [&](auto width) {
      constexpr int kCount = decltype(width)::value;
      const int64_t threads = std::min(kMostThreads, CeilDiv(heads * half / kCount, 32) * 32);
      return Launch(context, "RoPE", &RopeKernel<T, kCount>, Grid(tokens),
                    static_cast<int>(threads), table, positions, static_cast<int>(heads),
                    inverse ? -1.0f : 1.0f, static_cast<T*>(x));
    });
  });
}

}  // namespace forebay::cuda
