// Attention's gradients on tensor cores, in one kernel for those of queries and one for those of
// keys and values, each of which makes the scores anew: so every sum belongs to one warp, and none
// is added to by several blocks in an order that changes.
//
// A block has 64 rows: queries with their d_o, or keys with their values. Columns, the other pair,
// come in tiles, the next while this one is computed. A block of keys passes over all heads of its
// queries.
#include "forebay/model/cuda/attention_backward.h"
#include "forebay/model/cuda/attention_tensor_cores.h"

namespace forebay::cuda::attention {
namespace {

template <int kDim>
struct BackwardTiles {
  static constexpr int kColumns = kDim <= 128 ? 32 : 16;
  static constexpr int kRowElems = kTensorRows * kStride<kDim>;
  static constexpr int kTile = kColumns * kStride<kDim>;
  static constexpr int kElems = 2 * kRowElems + 4 * kTile;
};

// How many elements of a head a block makes gradients of: sums of dk and dv for more do not fit
// into registers, so a second block makes the scores once more.
template <int kDim, bool kOfKeys>
constexpr int kOutDims = kOfKeys&& kDim > 128 ? 128 : kDim;

template <int kDim, int kRows, typename T>
FOREBAY_DEVICE void CopyPair(T* to, const MatrixPair<T>& from, int head_dim, int first,
                             Range there) {
  CopyRows<kDim, kRows>(to, from.scored, from.row_stride, head_dim, first, there);
  CopyRows<kDim, kRows>(to + kRows * kStride<kDim>, from.other, from.row_stride, head_dim, first,
                        there);
}

// Scores s and the gradients dp of the weights become the weights and the gradients of the scores
// (without the scale).
template <int kColumns, bool kOfKeys>
FOREBAY_DEVICE void SoftmaxGradient(const Range (&of_row)[2], int first,
                                    const QueryStatistics* statistics, float log2_scale,
                                    float (&s)[kColumns / 8][4], float (&dp)[kColumns / 8][4]) {
  FOREBAY_UNROLL
  for (int n = 0; n < kColumns / 8; ++n) {
    FOREBAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = first + n * 8 + threadIdx.x % 4 * 2 + i % 2;
      const QueryStatistics& of = statistics[kOfKeys ? 2 * n + i % 2 : i / 2];
      const bool is_visible = of_row[i / 2].Has(column);
      const float p = exp2f(fmaf(s[n][i], log2_scale, -of.log2_sum));
      s[n][i] = is_visible ? p : 0.0f;
      dp[n][i] = is_visible ? p * (dp[n][i] - of.output_dot) : 0.0f;
    }
  }
}

template <typename T, int kDim, bool kOfKeys>
__global__ void __launch_bounds__(kTensorThreads)
    BackwardKernel(const AttentionInputs in, const AttentionGradients g) {
#if FOREBAY_HAS_AMPERE
  using Tiles = BackwardTiles<kDim>;
  constexpr int kColumns = Tiles::kColumns;
  constexpr int kOut = kOutDims<kDim, kOfKeys>;
  FOREBAY_DYNAMIC_SHARED(T, row_pair);
  T* const tiles = row_pair + 2 * Tiles::kRowElems;
  const int lane = threadIdx.x % 32;
  const int group = in.heads / in.kv_heads;
  const int row_head = blockIdx.y;
  const int first_dim = static_cast<int>(blockIdx.z) * kOut;
  // First come the blocks that see the most.
  const int first_row =
      static_cast<int>(kOfKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kTensorRows;
  const int in_block = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const int warp_row = first_row + in_block;
  const Range all = ColumnsAround<kOfKeys>(in, first_row, kTensorRows);
  const Range seen = ColumnsAround<kOfKeys>(in, warp_row, kWarpRows);
  const Range of_row[2] = {ColumnsOf<kOfKeys>(in, warp_row + lane / 4),
                           ColumnsOf<kOfKeys>(in, warp_row + lane / 4 + 8)};
  const int begin = all.begin / kColumns * kColumns;
  const int tiles_of_head = all.begin < all.end ? (all.end - begin + kColumns - 1) / kColumns : 0;
  const int num_tiles = tiles_of_head * (kOfKeys ? group : 1);

  const auto copy_tile = [&](int tile) {
    T* const to = tiles + tile % 2 * (2 * Tiles::kTile);
    const int first = begin + tile % tiles_of_head * kColumns;
    if constexpr (kOfKeys) {
      CopyPair<kDim, kColumns>(to, QueryPair<T>(in, g, row_head * group + tile / tiles_of_head),
                               in.head_dim, first, all);
    } else {
      CopyPair<kDim, kColumns>(to, KeyPair<T>(in, row_head / group), in.head_dim, first, all);
    }
    CommitCopies();
  };
  if (num_tiles > 0) {
    CopyPair<kDim, kTensorRows>(row_pair,
                                kOfKeys ? KeyPair<T>(in, row_head) : QueryPair<T>(in, g, row_head),
                                in.head_dim, first_row, {0, in.tokens});
    copy_tile(0);
  }
  const T* const rows = row_pair + in_block * kStride<kDim>;
  float sums[kOut / 8][4] = {};                      // dq or dk
  float value_sums[kOfKeys ? kOut / 8 : 1][4] = {};  // dv
  constexpr int kStatistics = kOfKeys ? kColumns / 4 : 2;
  QueryStatistics statistics[kStatistics];
  if constexpr (!kOfKeys) {
    for (int half = 0; half < 2; ++half) {
      statistics[half] = StatisticsOf(in, g, row_head, warp_row + lane / 4 + 8 * half);
    }
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    AwaitCopies<0>();
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    if (tile + 1 < num_tiles) copy_tile(tile + 1);
    const int first = begin + tile % tiles_of_head * kColumns;
    if (!seen.Meets(first, kColumns)) continue;
    if constexpr (kOfKeys) {
      const int head = row_head * group + tile / tiles_of_head;
      FOREBAY_UNROLL
      for (int i = 0; i < kStatistics; ++i) {
        statistics[i] = StatisticsOf(in, g, head, first + i / 2 * 8 + lane % 4 * 2 + i % 2);
      }
    }
    const T* const scored = tiles + tile % 2 * (2 * Tiles::kTile);
    const T* const other = scored + Tiles::kTile;
    float s[kColumns / 8][4] = {};
    float dp[kColumns / 8][4] = {};
    AddScores<kDim, kColumns>(s, rows, scored);
    AddScores<kDim, kColumns>(dp, rows + Tiles::kRowElems, other);
    SoftmaxGradient<kColumns, kOfKeys>(of_row, first, statistics, in.scale * kLog2E, s, dp);
    if constexpr (kOfKeys) {
      AddWeighted<kDim, kColumns, kOut>(value_sums, s, other + first_dim);
    }
    AddWeighted<kDim, kColumns, kOut>(sums, dp, scored + first_dim);
  }
  const int64_t row_stride = static_cast<int64_t>(kOfKeys ? in.kv_heads : in.heads) * in.head_dim;
  FOREBAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + lane / 4 + 8 * half;
    if (row >= in.tokens) continue;
    const int64_t at = row * row_stride + row_head * in.head_dim;
    StoreRow<kOut>(static_cast<T*>(kOfKeys ? g.dk : g.dq) + at, first_dim, in.head_dim, sums, half,
                   in.scale);
    if constexpr (kOfKeys) {
      StoreRow<kOut>(static_cast<T*>(g.dv) + at, first_dim, in.head_dim, value_sums, half, 1.0f);
    }
  }
#endif
}

template <typename T, int kDim, bool kOfKeys>
cudaError_t LaunchTensorKernel(const AttentionInputs& in, const AttentionGradients& gradients,
                               cudaStream_t stream) {
  const dim3 grid((in.tokens + kTensorRows - 1) / kTensorRows, kOfKeys ? in.kv_heads : in.heads,
                  (in.head_dim + kOutDims<kDim, kOfKeys> - 1) / kOutDims<kDim, kOfKeys>);
  return LaunchKernel(&BackwardKernel<T, kDim, kOfKeys>, grid, dim3(kTensorThreads),
                      BackwardTiles<kDim>::kElems * sizeof(T), stream, in, gradients);
}

}  // namespace

cudaError_t LaunchTensorBackward(bool fp16, const AttentionInputs& in,
                                 const AttentionGradients& gradients, cudaStream_t stream) {
  return ForTensorKernel(fp16, in.head_dim, [&](auto element, auto dim) {
    using T = decltype(element);
    constexpr int kDim = decltype(dim)::value;
    const cudaError_t error = LaunchTensorKernel<T, kDim, false>(in, gradients, stream);
    return error != cudaSuccess ? error : LaunchTensorKernel<T, kDim, true>(in, gradients, stream);
  });
}

}  // namespace forebay::cuda::attention
