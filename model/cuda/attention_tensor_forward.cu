// Attention's forward pass on tensor cores: a block has 64 queries of one head, each of its warps
// 16, whose scores and sums stay in registers. Keys and values come in tiles, the next while this
// one is computed.
#include "forebay/model/cuda/attention_tensor_cores.h"

namespace forebay::cuda::attention {
namespace {

template <int kDim>
struct ForwardTiles {
  static constexpr int kColumns = kDim <= 80 ? 64 : 32;
  static constexpr int kTile = kColumns * kStride<kDim>;  // elements
  // Where there are registers enough the queries are read from shared memory once, and what they
  // lay in is then that of the second pair of tiles.
  static constexpr bool kQueriesStay = kDim <= 128;
  static constexpr int kQueries = kQueriesStay ? 2 * kTile : 4 * kTile;  // where they lie
  static constexpr int kElems = kQueriesStay ? 4 * kTile : kQueries + kTensorRows * kStride<kDim>;
  static_assert(!kQueriesStay || 2 * kColumns >= kTensorRows);
};

// The softmax of two rows as far as it has come (Milakov & Gimelshein 2018), in powers of two.
struct RunningRows {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // this lane's part
};

// Scores become weights; sums of what came before get the factor that the new maximum asks for.
template <int kColumns, int kSums>
FOREBAY_DEVICE void Absorb(float (&s)[kColumns / 8][4], float (&sums)[kSums][4], RunningRows& rows,
                           float log2_scale) {
  FOREBAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    float most = rows.most[half];
    FOREBAY_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 2));
    const float base = most == -INFINITY ? 0.0f : most * log2_scale;
    const float keep = exp2f(fmaf(rows.most[half], log2_scale, -base));
    rows.most[half] = most;
    rows.sum[half] *= keep;
    FOREBAY_UNROLL
    for (int n = 0; n < kSums; ++n) {
      sums[n][2 * half] *= keep;
      sums[n][2 * half + 1] *= keep;
    }
    FOREBAY_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      FOREBAY_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * half + i];
        x = exp2f(fmaf(x, log2_scale, -base));
        rows.sum[half] += x;
      }
    }
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kTensorThreads)
    ForwardKernel(const AttentionInputs in, const AttentionResults out) {
#if FOREBAY_HAS_AMPERE
  using Tiles = ForwardTiles<kDim>;
  constexpr int kColumns = Tiles::kColumns;
  FOREBAY_DYNAMIC_SHARED(T, tiles);  // keys, values; the same for the next ones
  T* const queries = tiles + Tiles::kQueries;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const int64_t q_stride = static_cast<int64_t>(in.heads) * in.head_dim;
  const int64_t k_stride = static_cast<int64_t>(in.kv_heads) * in.head_dim;
  const int kv_offset = head / (in.heads / in.kv_heads) * in.head_dim;
  // The last queries see the most keys: they begin.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTensorRows;
  const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  const Range all = ColumnsAround<false>(in, first_row, kTensorRows);
  const Range lane_row = KeysOfQuery(in, warp_row + lane % kWarpRows);
  const Range seen = AroundWarp(lane_row);
  const Range common = CommonToWarp(lane_row);
  const Range of_row[2] = {KeysOfQuery(in, warp_row + lane / 4),
                           KeysOfQuery(in, warp_row + lane / 4 + 8)};

  const int begin = all.begin / kColumns * kColumns;
  const auto copy_tile = [&](int first) {
    T* const to = tiles + (first - begin) / kColumns % 2 * (2 * Tiles::kTile);
    CopyRows<kDim, kColumns>(to, static_cast<const T*>(in.k) + kv_offset, k_stride, in.head_dim,
                             first, all);
    CopyRows<kDim, kColumns>(to + Tiles::kTile, static_cast<const T*>(in.v) + kv_offset, k_stride,
                             in.head_dim, first, all);
    CommitCopies();
  };
  if (all.begin < all.end) {
    CopyRows<kDim, kTensorRows>(queries, static_cast<const T*>(in.q) + head * in.head_dim, q_stride,
                                in.head_dim, first_row, {0, in.tokens});
    copy_tile(begin);
  }
  const T* const rows = queries + (warp_row - first_row) * kStride<kDim>;
  uint32_t q[Tiles::kQueriesStay ? kDim / 16 : 1][4];
  float sums[kDim / 8][4] = {};
  RunningRows running;
  const float log2_scale = in.scale * kLog2E;
  for (int first = begin; first < all.end; first += kColumns) {
    AwaitCopies<0>();
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    if constexpr (Tiles::kQueriesStay) {
      if (first == begin) {
        FOREBAY_UNROLL
        for (int chunk = 0; chunk < kDim / 16; ++chunk) LoadRows<kDim>(q[chunk], rows, chunk * 16);
        __syncthreads();  // their place is free
      }
    }
    if (first + kColumns < all.end) copy_tile(first + kColumns);
    if (!seen.Meets(first, kColumns)) continue;
    const T* const keys = tiles + (first - begin) / kColumns % 2 * (2 * Tiles::kTile);
    float s[kColumns / 8][4] = {};
    if constexpr (Tiles::kQueriesStay) {
      FOREBAY_UNROLL
      for (int chunk = 0; chunk < kDim / 16; ++chunk) {
        AddScores<kDim, kColumns>(s, q[chunk], keys, chunk);
      }
    } else {
      AddScores<kDim, kColumns>(s, rows, keys);
    }
    if (!(common.begin <= first && first + kColumns <= common.end)) {
      FOREBAY_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        FOREBAY_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (!of_row[i / 2].Has(first + n * 8 + lane % 4 * 2 + i % 2)) s[n][i] = -INFINITY;
        }
      }
    }
    Absorb<kColumns>(s, sums, running, log2_scale);
    AddWeighted<kDim, kColumns, kDim>(sums, s, keys + Tiles::kTile);
  }
  FOREBAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = running.sum[half];
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    const int row = warp_row + lane / 4 + 8 * half;
    if (row >= in.tokens) continue;
    const bool is_padding = of_row[half].begin >= of_row[half].end;
    StoreRow<kDim>(static_cast<T*>(out.o) + row * q_stride + head * in.head_dim, 0, in.head_dim,
                   sums, half, is_padding ? 0.0f : 1.0f / sum);
    if (lane % 4 == 0) {
      out.log_sum_exp[static_cast<int64_t>(head) * in.tokens + row] =
          is_padding ? 0.0f : running.most[half] * in.scale + logf(sum);
    }
  }
#endif
}

}  // namespace

cudaError_t LaunchTensorForward(bool fp16, const AttentionInputs& in, const AttentionResults& out,
                                cudaStream_t stream) {
  return ForTensorKernel(fp16, in.head_dim, [&](auto element, auto dim) {
    using T = decltype(element);
    constexpr int kDim = decltype(dim)::value;
    const dim3 grid((in.tokens + kTensorRows - 1) / kTensorRows, in.heads);
    return LaunchKernel(&ForwardKernel<T, kDim>, grid, dim3(kTensorThreads),
                        ForwardTiles<kDim>::kElems * sizeof(T), stream, in, out);
  });
}

}  // namespace forebay::cuda::attention
