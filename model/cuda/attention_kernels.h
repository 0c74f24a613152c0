// All kernels of attention share this: what they are given, and which token sees which.
//
// The algorithm is that of Dao, "FlashAttention-2" (2023): a block of threads has a tile of rows
// (queries, or in the gradients of keys and values: keys) and passes over the tiles of columns (the
// others) that its rows see. Tiles begin at multiples of their size, whatever the segments are;
// what no row of a tile sees is passed over, which for many short segments is most of the matrix.
#pragma once

#include <climits>
#include <cstdint>

#include "forebay/base/dtype.h"
#include "forebay/device/kernel.h"
#include "forebay/device/ptx.h"

#ifdef __CUDACC__
#define FOREBAY_UNROLL _Pragma("unroll")
#else
#define FOREBAY_UNROLL
#endif

namespace forebay::cuda::attention {

struct AttentionInputs {
  int tokens, heads, kv_heads, head_dim;
  int window;  // 1 to tokens
  float scale;
  const int32_t* segment_begin;  // [tokens]; 0 and 0: padding
  const int32_t* segment_end;
  const void* q;  // [tokens, heads, head_dim]
  const void* k;  // [tokens, kv_heads, head_dim]
  const void* v;
};
struct AttentionResults {
  void* o;             // as q
  float* log_sum_exp;  // [heads, tokens]
};

// Columns [begin, end). One that is empty has no influence on the smallest range around several.
struct Range {
  int begin = INT_MAX;
  int end = 0;
  FOREBAY_DEVICE bool Has(int column) const { return begin <= column && column < end; }
  FOREBAY_DEVICE bool Meets(int first, int count) const {
    return begin < first + count && first < end;
  }
};

FOREBAY_DEVICE Range KeysOfQuery(const AttentionInputs& in, int query) {
  if (query >= in.tokens || in.segment_end[query] == 0) return {};
  return {max(static_cast<int>(in.segment_begin[query]), query - in.window + 1), query + 1};
}
FOREBAY_DEVICE Range QueriesOfKey(const AttentionInputs& in, int key) {
  if (key >= in.tokens || in.segment_end[key] == 0) return {};
  return {key, min(static_cast<int>(in.segment_end[key]), key + in.window)};
}
template <bool kOfKeys>
FOREBAY_DEVICE Range ColumnsOf(const AttentionInputs& in, int row) {
  if constexpr (kOfKeys) return QueriesOfKey(in, row);
  return KeysOfQuery(in, row);
}

constexpr unsigned kWholeWarp = 0xffffffffu;

// The smallest range around those of all lanes.
FOREBAY_DEVICE Range AroundWarp(Range range) {
  FOREBAY_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    range.begin = min(range.begin, __shfl_xor_sync(kWholeWarp, range.begin, distance));
    range.end = max(range.end, __shfl_xor_sync(kWholeWarp, range.end, distance));
  }
  return range;
}
// The columns that all lanes see.
FOREBAY_DEVICE Range CommonToWarp(Range range) {
  FOREBAY_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    range.begin = max(range.begin, __shfl_xor_sync(kWholeWarp, range.begin, distance));
    range.end = min(range.end, __shfl_xor_sync(kWholeWarp, range.end, distance));
  }
  return range;
}
// Around the columns of rows [first, first + count).
template <bool kOfKeys>
FOREBAY_DEVICE Range ColumnsAround(const AttentionInputs& in, int first, int count) {
  Range around;
  for (int row = threadIdx.x % 32; row < count; row += 32) {
    const Range columns = ColumnsOf<kOfKeys>(in, first + row);
    around.begin = min(around.begin, columns.begin);
    around.end = max(around.end, columns.end);
  }
  return AroundWarp(around);
}

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Launches. `fp16`: elements are fp16, else bf16.
cudaError_t LaunchTensorForward(bool fp16, const AttentionInputs& in, const AttentionResults& out,
                                cudaStream_t stream);
cudaError_t LaunchSimtForward(DType dtype, const AttentionInputs& in, const AttentionResults& out,
                              cudaStream_t stream);

}  // namespace forebay::cuda::attention
