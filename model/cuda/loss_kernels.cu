// Rows of logits to losses and gradients. A block takes a row: once over it for the largest logit
// and the sum of exponentials together, and once for the gradients.
#include "forebay/model/cuda/launch.h"
#include "forebay/model/cuda/loss.h"

namespace forebay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCount = 8;  // logits of an access
constexpr float kInfinity = HUGE_VALF;

// sum = the sum of exp(logit - most). NaN stays in the sum: a diverged model is seen.
struct Exponentials {
  float most;
  float sum;
};
FOREBAY_DEVICE float ShiftOf(float most) {
  return most == -kInfinity ? 0.0f : most;  // of no logits, or none that counts
}
FOREBAY_DEVICE Exponentials Joined(const Exponentials& a, const Exponentials& b) {
  const float most = fmaxf(a.most, b.most);
  const float shift = ShiftOf(most);
  return {most, a.sum * expf(a.most - shift) + b.sum * expf(b.most - shift)};
}

// Logits from `begin`, and -infinity behind the last.
FOREBAY_DEVICE void LoadLogits(const float* row, int64_t begin, int64_t vocab,
                               float (&logits)[kCount]) {
  if (begin + kCount <= vocab) {
    Load(row + begin, logits);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) logits[j] = begin + j < vocab ? row[begin + j] : -kInfinity;
}

// Gives those of the whole row to all threads.
FOREBAY_DEVICE Exponentials ExponentialsOf(const float* row, int64_t vocab) {
  Exponentials all = {-kInfinity, 0.0f};
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kCount; i < vocab; i += kThreads * kCount) {
    float logits[kCount];
    LoadLogits(row, i, vocab, logits);
    Exponentials these = {-kInfinity, 0.0f};
#pragma unroll
    for (int j = 0; j < kCount; ++j) these.most = fmaxf(these.most, logits[j]);
    const float shift = ShiftOf(these.most);
#pragma unroll
    for (int j = 0; j < kCount; ++j) these.sum += expf(logits[j] - shift);
    all = Joined(all, these);
  }
  for (int distance = 1; distance < 32; distance *= 2) {
    const float most = __shfl_xor_sync(0xffffffffu, all.most, distance);
    const float sum = __shfl_xor_sync(0xffffffffu, all.sum, distance);
    all = Joined(all, {most, sum});
  }
  FOREBAY_SHARED(float, most_of_warps, [kWarps]);
  FOREBAY_SHARED(float, sum_of_warps, [kWarps]);
  if (threadIdx.x % 32 == 0) {
    most_of_warps[threadIdx.x / 32] = all.most;
    sum_of_warps[threadIdx.x / 32] = all.sum;
  }
  __syncthreads();
  all = {most_of_warps[0], sum_of_warps[0]};
  for (int warp = 1; warp < kWarps; ++warp) {
    all = Joined(all, {most_of_warps[warp], sum_of_warps[warp]});
  }
  return all;
}

// dlogits may lie in the place of the logits: a thread writes what it alone has read.
template <typename T>
FOREBAY_DEVICE void StoreGradients(const LogitRows& rows, int64_t row, float log_sum, float scale,
                                   T* dlogits) {
  const float* const logits = rows.logits + row * rows.stride;
  const int target = rows.targets[row];
  const int64_t one_hot = target - rows.first;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kCount; i < rows.entries;
       i += kThreads * kCount) {
    float values[kCount] = {};
    if (target >= 0) {
      LoadLogits(logits, i, rows.entries, values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        values[j] = (expf(values[j] - log_sum) - (i + j == one_hot ? 1.0f : 0.0f)) * scale;
      }
    }
    Store(values, dlogits + row * rows.stride + i);
  }
}

// dlogits nullptr: the loss alone.
template <typename T>
__global__ void LossKernel(LogitRows rows, float scale, float* losses, float* log_sum_exp,
                           T* dlogits) {
  const int64_t row = blockIdx.x;
  const int target = rows.targets[row];
  const float* const logits = rows.logits + row * rows.stride;
  float log_sum = 0;
  if (target >= 0) {
    const float of_target = logits[target];
    const Exponentials all = ExponentialsOf(logits, rows.entries);
    log_sum = all.most + logf(all.sum);
    if (threadIdx.x == 0) losses[row] = log_sum - of_target;
    if (threadIdx.x == 0 && log_sum_exp != nullptr) log_sum_exp[row] = log_sum;
  } else if (threadIdx.x == 0) {
    losses[row] = 0;
  }
  if (dlogits != nullptr) StoreGradients(rows, row, log_sum, scale, dlogits);
}

template <typename T>
__global__ void GradientKernel(LogitRows rows, float scale, const float* log_sum_exp, T* dlogits) {
  const int64_t row = blockIdx.x;
  const float log_sum = rows.targets[row] >= 0 ? log_sum_exp[row] : 0;
  StoreGradients(rows, row, log_sum, scale, dlogits);
}

// One block: sums of every 256th value, added in order.
__global__ void SumKernel(const float* values, int64_t count, double* sum) {
  FOREBAY_SHARED(double, of_threads, [kThreads]);
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) own += values[i];
  of_threads[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double all = 0;
  for (int i = 0; i < kThreads; ++i) all += of_threads[i];
  *sum = all;
}

}  // namespace

absl::Status LossOfRows(Context& context, const LogitRows& rows, double scale, float* losses,
                        float* log_sum_exp, void* dlogits) {
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    return Launch(context, "cross-entropy", &LossKernel<T>, Grid(rows.rows), kThreads, rows,
                  static_cast<float>(scale), losses, log_sum_exp, static_cast<T*>(dlogits));
  });
}

absl::Status GradientOfRows(Context& context, const LogitRows& rows, double scale,
                            const float* log_sum_exp, void* dlogits) {
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    return Launch(context, "the gradient of logits", &GradientKernel<T>, Grid(rows.rows), kThreads,
                  rows, static_cast<float>(scale), log_sum_exp, static_cast<T*>(dlogits));
  });
}

absl::Status SumInDouble(Context& context, const float* values, int64_t count, double* sum) {
  return Launch(context, "the sum of losses", &SumKernel, Grid(1), kThreads, values, count, sum);
}

}  // namespace forebay::cuda
