// A warp's matrix operations as kernels, for tests on an emulated GPU and on a real one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace forebay::ptx_kernels {

// c[16][8] += a[16][16] * b[16][8], row-major; b comes through ldmatrix.trans.
cudaError_t Multiply(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, cudaStream_t stream);
cudaError_t Multiply(float* c, const __half* a, const __half* b, cudaStream_t stream);
// to[32][4]: what each lane receives of the four 8x8 matrices in from[32][8] by ldmatrix.
cudaError_t Load(unsigned* to, const __nv_bfloat16* from, bool transposed, cudaStream_t stream);
// to[i]: values[2 * i] and the next, packed as bf16 or fp16; 32 of them.
cudaError_t Pack(unsigned* to, const float* values, bool fp16, cudaStream_t stream);

}  // namespace forebay::ptx_kernels
