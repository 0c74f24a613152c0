// Attention's forward pass without tensor cores.
#include "forebay/model/cuda/attention_simt.h"

namespace forebay::cuda::attention {
namespace {

template <int kDim>
constexpr int kForwardFloats =
    (SimtTiles<kDim>::kRows + 2 * SimtTiles<kDim>::kColumns) * SimtTiles<kDim>::kStride
    + SimtTiles<kDim>::kRows* SimtTiles<kDim>::kColumns;

// The value of `combine` over the lanes that have columns of one row.
template <int kColumns, typename Combine>
FOREBAY_DEVICE float OverColumns(float value, const Combine& combine) {
  FOREBAY_UNROLL
  for (int distance = kColumns / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

template <int kDim>
struct SimtForwardState {
  using Tiles = SimtTiles<kDim>;
  float most[Tiles::kLaneRows];
  float sum[Tiles::kLaneRows];  // this lane's part
  float sums[Tiles::kWarpRows][Tiles::kLaneDims] = {};

  // The scores of one tile become weights, and sums of what came before get the factor that the new
  // maximum asks for (Milakov & Gimelshein 2018).
  FOREBAY_DEVICE void Absorb(float (&s)[Tiles::kLaneRows]) {
    float keep[Tiles::kLaneRows];
    FOREBAY_UNROLL
    for (int i = 0; i < Tiles::kLaneRows; ++i) {
      const float new_most =
          fmaxf(most[i],
                OverColumns<Tiles::kColumns>(s[i], [](float a, float b) { return fmaxf(a, b); }));
      const float base = new_most == -INFINITY ? 0.0f : new_most;
      keep[i] = exp2f((most[i] - base) * kLog2E);
      most[i] = new_most;
      s[i] = exp2f((s[i] - base) * kLog2E);
      sum[i] = sum[i] * keep[i] + s[i];
    }
    FOREBAY_UNROLL
    for (int row = 0; row < Tiles::kWarpRows; ++row) {
      const float factor = __shfl_sync(kWholeWarp, keep[row / Tiles::kRowsAtOnce],
                                       row % Tiles::kRowsAtOnce * Tiles::kColumns);
      FOREBAY_UNROLL
      for (int c = 0; c < Tiles::kLaneDims; ++c) sums[row][c] *= factor;
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kSimtThreads, kSimtBlocks)
    SimtForwardKernel(const AttentionInputs in, const AttentionResults out) {
  using Tiles = SimtTiles<kDim>;
  constexpr int kColumns = Tiles::kColumns;
  FOREBAY_DYNAMIC_SHARED(float, queries);
  float* const keys = queries + Tiles::kRows * Tiles::kStride;
  float* const values = keys + kColumns * Tiles::kStride;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float* const weights = values + kColumns * Tiles::kStride + warp * Tiles::kWarpRows * kColumns;
  const int head = blockIdx.y;
  const int64_t q_stride = static_cast<int64_t>(in.heads) * in.head_dim;
  const int64_t k_stride = static_cast<int64_t>(in.kv_heads) * in.head_dim;
  const int kv_offset = head / (in.heads / in.kv_heads) * in.head_dim;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kRows;
  const int warp_row = first_row + warp * Tiles::kWarpRows;
  const int lane_row = lane / kColumns;  // the first, in the warp
  const Range all = ColumnsAround<false>(in, first_row, Tiles::kRows);
  const Range seen = AroundWarp(KeysOfQuery(in, warp_row + lane % Tiles::kWarpRows));

  CopyFloats<kDim, Tiles::kRows>(queries, static_cast<const T*>(in.q) + head * in.head_dim,
                                 q_stride, in.head_dim, first_row, {0, in.tokens});
  const float* const rows = queries + (warp * Tiles::kWarpRows + lane_row) * Tiles::kStride;
  SimtForwardState<kDim> state;
  FOREBAY_UNROLL
  for (int i = 0; i < Tiles::kLaneRows; ++i) {
    state.most[i] = -INFINITY;
    state.sum[i] = 0.0f;
  }
  for (int first = all.begin / kColumns * kColumns; first < all.end; first += kColumns) {
    __syncthreads();  // nobody reads the tiles and weights before these any more
    CopyFloats<kDim, kColumns>(keys, static_cast<const T*>(in.k) + kv_offset, k_stride, in.head_dim,
                               first, all);
    CopyFloats<kDim, kColumns>(values, static_cast<const T*>(in.v) + kv_offset, k_stride,
                               in.head_dim, first, all);
    __syncthreads();
    if (!seen.Meets(first, kColumns)) continue;
    const int column = lane % kColumns;
    float s[Tiles::kLaneRows];
    SimtScores<kDim>(s, rows, keys + column * Tiles::kStride, in.head_dim);
    FOREBAY_UNROLL
    for (int i = 0; i < Tiles::kLaneRows; ++i) {
      const int row = warp_row + i * Tiles::kRowsAtOnce + lane_row;
      s[i] = KeysOfQuery(in, row).Has(first + column) ? s[i] * in.scale : -INFINITY;
    }
    state.Absorb(s);
    FOREBAY_UNROLL
    for (int i = 0; i < Tiles::kLaneRows; ++i) {
      weights[(i * Tiles::kRowsAtOnce + lane_row) * kColumns + column] = s[i];
    }
    __syncwarp();
    SimtAddWeighted<kDim>(state.sums, weights, values);
  }
  FOREBAY_UNROLL
  for (int i = 0; i < Tiles::kLaneRows; ++i) {
    state.sum[i] = OverColumns<kColumns>(state.sum[i], [](float a, float b) { return a + b; });
    const int row = warp_row + i * Tiles::kRowsAtOnce + lane_row;
    if (lane % kColumns != 0 || row >= in.tokens) continue;
    out.log_sum_exp[static_cast<int64_t>(head) * in.tokens + row] =
        in.segment_end[row] == 0 ? 0.0f : state.most[i] + logf(state.sum[i]);
  }
  FOREBAY_UNROLL
  for (int i = 0; i < Tiles::kWarpRows; ++i) {
    const int row = warp_row + i;
    const float sum = __shfl_sync(kWholeWarp, state.sum[i / Tiles::kRowsAtOnce],
                                  i % Tiles::kRowsAtOnce * kColumns);
    if (row >= in.tokens) continue;
    StoreFloats(static_cast<T*>(out.o) + row * q_stride + head * in.head_dim, in.head_dim,
                state.sums[i], in.segment_end[row] == 0 ? 0.0f : 1.0f / sum);
  }
}

}  // namespace

cudaError_t LaunchSimtForward(DType dtype, const AttentionInputs& in, const AttentionResults& out,
                              cudaStream_t stream) {
  return ForSimtKernel(dtype, in.head_dim, [&](auto element, auto dim) {
    using T = decltype(element);
    constexpr int kDim = decltype(dim)::value;
    const dim3 grid((in.tokens + SimtTiles<kDim>::kRows - 1) / SimtTiles<kDim>::kRows, in.heads);
    return LaunchKernel(&SimtForwardKernel<T, kDim>, grid, dim3(kSimtThreads),
                        kForwardFloats<kDim> * sizeof(float), stream, in, out);
  });
}

}  // namespace forebay::cuda::attention
