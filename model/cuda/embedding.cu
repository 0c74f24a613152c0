// Rows of the embedding, and their gradients. A block takes some columns of a token, or of all
// places where one token stands.
#include "forebay/model/cuda/launch.h"

namespace forebay::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T, int kCount>
__global__ void EmbeddingKernel(const T* table, const int32_t* tokens, int64_t hidden, T* out,
                                bool adds) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= hidden) return;
  float row[kCount];
  Load(table + tokens[blockIdx.x] * hidden + column, row);
  StoreOrAdd(row, adds, out + blockIdx.x * hidden + column);
}

template <typename T, int kCount>
__global__ void EmbeddingGradientKernel(const int32_t* tokens, TokenRuns runs, int64_t hidden,
                                        const T* dout, int64_t first_row, int64_t num_rows,
                                        float* dtable) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  if (column >= hidden) return;
  const int begin = runs.run_begin[blockIdx.x];
  const int end = runs.run_begin[blockIdx.x + 1];
  const int64_t row_of_table = tokens[runs.order[begin]] - first_row;
  if (row_of_table < 0 || row_of_table >= num_rows) return;
  float* const to = dtable + row_of_table * hidden + column;
  float sum[kCount];
  Load(to, sum);
  // A frequent token has a long run: several of its rows are on their way at a time.
#pragma unroll 4
  for (int i = begin; i < end; ++i) {
    float row[kCount];
    Load(dout + runs.order[i] * hidden + column, row);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] += row[j];
  }
  Store(sum, to);
}

}  // namespace

absl::Status EmbeddingForward(Context& context, const void* table, const int32_t* tokens,
                              int64_t num_tokens, int64_t hidden, void* out, bool accumulate) {
  if (num_tokens == 0) return absl::OkStatus();
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    const bool wide = hidden % kWide<T> == 0 && AreAligned({table, out});
    return VisitWidth<T>(wide, [&](auto width) {
      constexpr int kCount = decltype(width)::value;
      return Launch(context, "the embedding", &EmbeddingKernel<T, kCount>,
                    Grid(num_tokens, CeilDiv(hidden, int64_t{kThreads} * kCount)), kThreads,
                    static_cast<const T*>(table), tokens, hidden, static_cast<T*>(out), accumulate);
    });
  });
}

absl::Status EmbeddingBackwardOfRows(Context& context, const int32_t* tokens, const TokenRuns& runs,
                                     int64_t hidden, const void* dout, int64_t first_row,
                                     int64_t num_rows, float* dtable) {
  if (runs.num_runs == 0) return absl::OkStatus();
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    const bool wide = hidden % kWide<T> == 0 && AreAligned({dout, dtable});
    return VisitWidth<T>(wide, [&](auto width) {
      constexpr int kCount = decltype(width)::value;
      return Launch(context, "the embedding's gradient", &EmbeddingGradientKernel<T, kCount>,
                    Grid(runs.num_runs, CeilDiv(hidden, int64_t{kThreads} * kCount)), kThreads,
                    tokens, runs, hidden, static_cast<const T*>(dout), first_row, num_rows, dtable);
    });
  });
}

absl::Status EmbeddingBackward(Context& context, const int32_t* tokens, const TokenRuns& runs,
                               int64_t hidden, const void* dout, float* dtable) {
  return EmbeddingBackwardOfRows(context, tokens, runs, hidden, dout, /*first_row=*/0,
                                 /*num_rows=*/int64_t{1} << 31, dtable);
}

}  // namespace forebay::cuda
