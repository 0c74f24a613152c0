// A block takes a query and a head. Its warps take the keys in turn, 32 at a time: for scores a
// lane has one key, for sums every 32nd element of the head. Their results meet in shared memory,
// in the order of the warps.
#include "forebay/model/cuda/attention_cached.h"

#include <algorithm>
#include <cmath>

#include "forebay/base/check.h"
#include "forebay/model/cuda/attention_simt.h"
#include "forebay/model/cuda/launch.h"

namespace forebay::cuda {
namespace {

using attention::kLog2E;
using attention::kWholeWarp;

constexpr int kWarps = attention::kSimtThreads / 32;

struct CachedInputs {
  const int32_t* position;
  const int32_t* row;
  int heads, kv_heads, head_dim;
  int window;
  float scale;
  bool is_wide;  // rows can be read 16 bytes at a time
  const void* q;
  const void* keys;
  const void* values;
};

// A warp's softmax over the keys that it has seen.
template <int kLaneDims>
struct WarpState {
  float most = -INFINITY;
  float sum = 0.0f;
  float sums[kLaneDims] = {};
};

template <int kCount, typename T>
FOREBAY_DEVICE float Dot(const float* query, const T* key, int head_dim) {
  float dot = 0.0f;
  for (int d = 0; d < head_dim; d += kCount) {
    float k[kCount];
    Load(key + d, k);
    FOREBAY_UNROLL
    for (int i = 0; i < kCount; ++i) dot = fmaf(query[d + i], k[i], dot);
  }
  return dot;
}

// Adds the keys from `key` on, of which this lane has its own score; -INFINITY: there is none.
template <int kLaneDims, typename T>
FOREBAY_DEVICE void Absorb(WarpState<kLaneDims>& state, float score, int count, const T* value,
                           int64_t stride, int head_dim) {
  float most = score;
  FOREBAY_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, distance));
  }
  most = fmaxf(most, state.most);
  const float keep = exp2f((state.most - most) * kLog2E);
  const float weight = exp2f((score - most) * kLog2E);
  state.most = most;
  state.sum = state.sum * keep + weight;
  FOREBAY_UNROLL
  for (int c = 0; c < kLaneDims; ++c) state.sums[c] *= keep;
  for (int j = 0; j < count; ++j) {
    const float of_key = __shfl_sync(kWholeWarp, weight, j);
    FOREBAY_UNROLL
    for (int c = 0; c < kLaneDims; ++c) {
      const int d = static_cast<int>(threadIdx.x) % 32 + 32 * c;
      if (d < head_dim) state.sums[c] = fmaf(of_key, ToFloat(value[j * stride + d]), state.sums[c]);
    }
  }
}

// The warps' states become one, of which each thread writes its elements.
template <int kDim, typename T>
FOREBAY_DEVICE void Meet(const WarpState<kDim / 32>& state, int head_dim, T* o) {
  FOREBAY_SHARED(float, most, [kWarps]);
  FOREBAY_SHARED(float, sum, [kWarps]);
  FOREBAY_SHARED(float, sums, [kWarps * kDim]);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float of_lanes = state.sum;
  FOREBAY_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    of_lanes += __shfl_xor_sync(kWholeWarp, of_lanes, distance);
  }
  if (lane == 0) {
    most[warp] = state.most;
    sum[warp] = of_lanes;
  }
  FOREBAY_UNROLL
  for (int c = 0; c < kDim / 32; ++c) sums[warp * kDim + lane + 32 * c] = state.sums[c];
  __syncthreads();
  float of_all = most[0];
  for (int i = 1; i < kWarps; ++i) of_all = fmaxf(of_all, most[i]);
  for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += attention::kSimtThreads) {
    float weights = 0.0f;
    float result = 0.0f;
    for (int i = 0; i < kWarps; ++i) {
      const float factor = exp2f((most[i] - of_all) * kLog2E);
      weights = fmaf(sum[i], factor, weights);
      result = fmaf(sums[i * kDim + d], factor, result);
    }
    Round(result / weights, o[d]);
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(attention::kSimtThreads)
    AttentionCachedKernel(const CachedInputs in, T* o) {
  FOREBAY_SHARED(float, query, [kDim]);
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t place = (static_cast<int64_t>(blockIdx.x) * in.heads + head) * in.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < in.head_dim; d += attention::kSimtThreads) {
    query[d] = ToFloat(static_cast<const T*>(in.q)[place + d]);
  }
  __syncthreads();
  const int end = in.row[blockIdx.x] + 1;
  const int first = end - min(static_cast<int>(in.position[blockIdx.x]) + 1, in.window);
  const int64_t stride = static_cast<int64_t>(in.kv_heads) * in.head_dim;
  const int64_t offset = int64_t{head / (in.heads / in.kv_heads)} * in.head_dim;
  const T* const keys = static_cast<const T*>(in.keys) + offset;
  const T* const values = static_cast<const T*>(in.values) + offset;
  WarpState<kDim / 32> state;
  for (int key = first + warp * 32; key < end; key += attention::kSimtThreads) {
    float score = -INFINITY;
    if (key + lane < end) {
      const T* const own = keys + (key + lane) * stride;
      score = in.scale * (in.is_wide ? Dot<kWide<T>>(query, own, in.head_dim)
                                     : Dot<1>(query, own, in.head_dim));
    }
    Absorb(state, score, min(32, end - key), values + key * stride, stride, in.head_dim);
  }
  Meet<kDim>(state, in.head_dim, o + place);
}

// Units of a row: 4 or 16 bytes.
template <typename Unit>
__global__ void AppendToCacheKernel(const int32_t* row, int64_t units, const Unit* from, Unit* to) {
  const Unit* const own = from + blockIdx.x * units;
  Unit* const there = to + row[blockIdx.x] * units;
  for (int64_t i = threadIdx.x; i < units; i += blockDim.x) there[i] = own[i];
}

}  // namespace

absl::Status AppendToCache(Context& context, const CachedTokens& tokens, int64_t width,
                           const void* from, void* to) {
  const int64_t row_bytes = width * SizeOf(context.dtype());
  FOREBAY_CHECK(row_bytes % 4 == 0);
  if (tokens.tokens == 0 || width == 0) return absl::OkStatus();
  const auto append = [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t units = row_bytes / static_cast<int64_t>(sizeof(Unit));
    return Launch(context, "the cache of keys and values", &AppendToCacheKernel<Unit>,
                  Grid(tokens.tokens),
                  static_cast<int>(std::min<int64_t>(256, CeilDiv(units, 32) * 32)), tokens.row,
                  units, static_cast<const Unit*>(from), static_cast<Unit*>(to));
  };
  return row_bytes % 16 == 0 && AreAligned({from, to}) ? append(uint4()) : append(uint32_t());
}

absl::Status AttentionCached(Context& context, const CachedAttentionShape& shape,
                             const CachedTokens& tokens, const void* q, const void* keys,
                             const void* values, void* o) {
  FOREBAY_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  FOREBAY_CHECK(shape.head_dim > 0 && shape.head_dim <= 256 && shape.head_dim % 2 == 0);
  if (tokens.tokens == 0) return absl::OkStatus();
  const int64_t row_bytes = shape.head_dim * SizeOf(context.dtype());
  const bool sees_all = shape.window <= 0 || shape.window > INT32_MAX;
  const CachedInputs in = {
      .position = tokens.position,
      .row = tokens.row,
      .heads = static_cast<int>(shape.heads),
      .kv_heads = static_cast<int>(shape.kv_heads),
      .head_dim = static_cast<int>(shape.head_dim),
      .window = static_cast<int>(sees_all ? INT32_MAX : shape.window),
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim))),
      .is_wide = row_bytes % 16 == 0 && AreAligned({keys, values}),
      .q = q,
      .keys = keys,
      .values = values};
  const dim3 grid = Grid(tokens.tokens, shape.heads);
  return context.stream().Launch([&](void* native_stream) -> absl::Status {
    const cudaError_t error =
        attention::ForSimtKernel(context.dtype(), in.head_dim, [&](auto element, auto dim) {
          using T = decltype(element);
          return LaunchKernel(&AttentionCachedKernel<T, decltype(dim)::value>, grid,
                              dim3(attention::kSimtThreads), 0,
                              static_cast<cudaStream_t>(native_stream), in, static_cast<T*>(o));
        });
    if (error == cudaSuccess) return absl::OkStatus();
    return CudaError("launching attention to cached keys", error);
  });
}

}  // namespace forebay::cuda
