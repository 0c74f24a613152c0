// Attention's gradients without tensor cores: the same two kernels as with them
// (attention_tensor_backward.cu).
#include "forebay/model/cuda/attention_backward.h"
#include "forebay/model/cuda/attention_simt.h"

namespace forebay::cuda::attention {
namespace {

template <int kDim>
constexpr int kBackwardFloats =
    2 * (SimtTiles<kDim>::kRows + SimtTiles<kDim>::kColumns) * SimtTiles<kDim>::kStride +
    2 * SimtTiles<kDim>::kRows* SimtTiles<kDim>::kColumns;

template <int kDim, int kRows, typename T>
FOREBAY_DEVICE void CopyFloatPair(float* to, const MatrixPair<T>& from, int head_dim, int first,
                                  Range there) {
  CopyFloats<kDim, kRows>(to, from.scored, from.row_stride, head_dim, first, there);
  CopyFloats<kDim, kRows>(to + kRows * SimtTiles<kDim>::kStride, from.other, from.row_stride,
                          head_dim, first, there);
}

template <typename T, int kDim, bool kOfKeys>
__global__ void __launch_bounds__(kSimtThreads, kSimtBlocks)
    SimtBackwardKernel(const AttentionInputs in, const AttentionGradients g) {
  using Tiles = SimtTiles<kDim>;
  constexpr int kColumns = Tiles::kColumns;
  FOREBAY_DYNAMIC_SHARED(float, row_pair);
  float* const scored = row_pair + 2 * Tiles::kRows * Tiles::kStride;
  float* const other = scored + kColumns * Tiles::kStride;
  const int lane = threadIdx.x % 32;
  const int in_block = static_cast<int>(threadIdx.x) / 32 * Tiles::kWarpRows;
  // The warp's own rows: weights, and behind those of all warps the gradients of the scores.
  float* const weights = other + kColumns * Tiles::kStride + in_block * kColumns;
  float* const score_gradients = weights + Tiles::kRows * kColumns;
  const int group = in.heads / in.kv_heads;
  const int row_head = blockIdx.y;
  const int first_row =
      static_cast<int>(kOfKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * Tiles::kRows;
  const int warp_row = first_row + in_block;
  const int lane_row = lane / kColumns;  // the first, in the warp
  const int lane_column = lane % kColumns;
  const Range all = ColumnsAround<kOfKeys>(in, first_row, Tiles::kRows);
  const Range seen = ColumnsAround<kOfKeys>(in, warp_row, Tiles::kWarpRows);

  CopyFloatPair<kDim, Tiles::kRows>(
      row_pair, kOfKeys ? KeyPair<T>(in, row_head) : QueryPair<T>(in, g, row_head), in.head_dim,
      first_row, {0, in.tokens});
  const float* const rows = row_pair + (in_block + lane_row) * Tiles::kStride;
  float sums[Tiles::kWarpRows][Tiles::kLaneDims] = {};                      // dq or dk
  float value_sums[kOfKeys ? Tiles::kWarpRows : 1][Tiles::kLaneDims] = {};  // dv
  for (int member = 0; member < (kOfKeys ? group : 1); ++member) {
    const int head = kOfKeys ? row_head * group + member : row_head;
    for (int first = all.begin / kColumns * kColumns; first < all.end; first += kColumns) {
      __syncthreads();  // nobody reads the tiles and weights before these any more
      CopyFloatPair<kDim, kColumns>(
          scored, kOfKeys ? QueryPair<T>(in, g, head) : KeyPair<T>(in, row_head / group),
          in.head_dim, first, all);
      __syncthreads();
      if (!seen.Meets(first, kColumns)) continue;
      float s[Tiles::kLaneRows];
      float dp[Tiles::kLaneRows];
      SimtScores<kDim>(s, rows, scored + lane_column * Tiles::kStride, in.head_dim);
      SimtScores<kDim>(dp, rows + Tiles::kRows * Tiles::kStride,
                       other + lane_column * Tiles::kStride, in.head_dim);
      const int column = first + lane_column;
      FOREBAY_UNROLL
      for (int i = 0; i < Tiles::kLaneRows; ++i) {
        const int row = warp_row + i * Tiles::kRowsAtOnce + lane_row;
        const QueryStatistics of = StatisticsOf(in, g, head, kOfKeys ? column : row);
        const bool is_visible = ColumnsOf<kOfKeys>(in, row).Has(column);
        const float p = exp2f(fmaf(s[i], in.scale * kLog2E, -of.log2_sum));
        const int at = (i * Tiles::kRowsAtOnce + lane_row) * kColumns + lane_column;
        if constexpr (kOfKeys) weights[at] = is_visible ? p : 0.0f;
        score_gradients[at] = is_visible ? p * (dp[i] - of.output_dot) : 0.0f;
      }
      __syncwarp();
      if constexpr (kOfKeys) SimtAddWeighted<kDim>(value_sums, weights, other);
      SimtAddWeighted<kDim>(sums, score_gradients, scored);
    }
  }
  const int64_t row_stride = static_cast<int64_t>(kOfKeys ? in.kv_heads : in.heads) * in.head_dim;
  FOREBAY_UNROLL
  for (int i = 0; i < Tiles::kWarpRows; ++i) {
    const int row = warp_row + i;
    if (row >= in.tokens) continue;
    const int64_t at = row * row_stride + row_head * in.head_dim;
    StoreFloats(static_cast<T*>(kOfKeys ? g.dk : g.dq) + at, in.head_dim, sums[i], in.scale);
    if constexpr (kOfKeys) {
      StoreFloats(static_cast<T*>(g.dv) + at, in.head_dim, value_sums[i], 1.0f);
    }
  }
}

template <typename T, int kDim, bool kOfKeys>
cudaError_t LaunchSimtKernel(const AttentionInputs& in, const AttentionGradients& gradients,
                             cudaStream_t stream) {
  const dim3 grid((in.tokens + SimtTiles<kDim>::kRows - 1) / SimtTiles<kDim>::kRows,
                  kOfKeys ? in.kv_heads : in.heads);
  return LaunchKernel(&SimtBackwardKernel<T, kDim, kOfKeys>, grid, dim3(kSimtThreads),
                      kBackwardFloats<kDim> * sizeof(float), stream, in, gradients);
}

}  // namespace

cudaError_t LaunchSimtBackward(DType dtype, const AttentionInputs& in,
                               const AttentionGradients& gradients, cudaStream_t stream) {
  return ForSimtKernel(dtype, in.head_dim, [&](auto element, auto dim) {
    using T = decltype(element);
    constexpr int kDim = decltype(dim)::value;
    const cudaError_t error = LaunchSimtKernel<T, kDim, false>(in, gradients, stream);
    return error != cudaSuccess ? error : LaunchSimtKernel<T, kDim, true>(in, gradients, stream);
  });
}

}  // namespace forebay::cuda::attention
