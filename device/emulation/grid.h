// Runs the grid of a launch.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace forebay::emulation {

// The error that a launch of this shape would give on a GPU.
cudaError_t CheckShape(dim3 grid, dim3 block, size_t shared_bytes);
// Runs it to its end, on the calling thread, as the stream that TSan knows it by.
void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

}  // namespace forebay::emulation
