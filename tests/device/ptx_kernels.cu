#include "forebay/tests/device/ptx_kernels.h"

#include <type_traits>

#include "forebay/device/ptx.h"

namespace forebay::ptx_kernels {
namespace {

template <typename T>
__global__ void MultiplyKernel(float* c, const T* a, const T* b) {
  FOREBAY_SHARED(T, rows, [32][8]);
  const int lane = threadIdx.x;
  const int g = lane / 4;
  const int t = lane % 4;
  uint32_t of_a[4];
  for (int q = 0; q < 4; ++q) {
    const int row = g + 8 * (q % 2);
    const int column = 2 * t + 8 * (q / 2);
    of_a[q] = *reinterpret_cast<const uint32_t*>(a + row * 16 + column);
  }
  // Rows of b, the upper half and the lower; the other two matrices are not used.
  for (int i = 0; i < 8; ++i) rows[lane][i] = b[lane % 16 * 8 + i];
  __syncwarp();
  uint32_t of_b[4];
  LoadMatrices<true>(of_b, rows[lane]);
  float d[4];
  for (int q = 0; q < 4; ++q) d[q] = c[(g + 8 * (q / 2)) * 8 + 2 * t + q % 2];
  if constexpr (std::is_same_v<T, __half>) {
    MultiplyFp16(d, of_a, {of_b[0], of_b[1]});
  } else {
    MultiplyBf16(d, of_a, {of_b[0], of_b[1]});
  }
  for (int q = 0; q < 4; ++q) c[(g + 8 * (q / 2)) * 8 + 2 * t + q % 2] = d[q];
}

__global__ void LoadKernel(unsigned* to, const __nv_bfloat16* from, bool transposed) {
  FOREBAY_SHARED(__nv_bfloat16, rows, [32][8]);
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) rows[lane][i] = from[lane * 8 + i];
  __syncwarp();
  uint32_t received[4];
  if (transposed) {
    LoadMatrices<true>(received, rows[lane]);
  } else {
    LoadMatrices<false>(received, rows[lane]);
  }
  for (int i = 0; i < 4; ++i) to[lane * 4 + i] = received[i];
}

__global__ void PackKernel(unsigned* to, const float* values, bool fp16) {
  const float low = values[2 * threadIdx.x];
  const float high = values[2 * threadIdx.x + 1];
  to[threadIdx.x] = fp16 ? PackFp16(low, high) : PackBf16(low, high);
}

}  // namespace

cudaError_t Multiply(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b,
                     cudaStream_t stream) {
  return LaunchKernel(&MultiplyKernel<__nv_bfloat16>, dim3(1), dim3(32), 0, stream, c, a, b);
}

cudaError_t Multiply(float* c, const __half* a, const __half* b, cudaStream_t stream) {
  return LaunchKernel(&MultiplyKernel<__half>, dim3(1), dim3(32), 0, stream, c, a, b);
}

cudaError_t Load(unsigned* to, const __nv_bfloat16* from, bool transposed, cudaStream_t stream) {
  return LaunchKernel(&LoadKernel, dim3(1), dim3(32), 0, stream, to, from, transposed);
}

cudaError_t Pack(unsigned* to, const float* values, bool fp16, cudaStream_t stream) {
  return LaunchKernel(&PackKernel, dim3(1), dim3(32), 0, stream, to, values, fp16);
}

}  // namespace forebay::ptx_kernels
