// How operators reach their kernels: by the type of the elements, by how many a thread takes at a
// time, on the context's stream.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/cuda_error.h"
#include "forebay/device/kernel.h"
#include "forebay/model/cuda/elements.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// visit(T()) with the elements' T.
template <typename Visit>
absl::Status VisitElement(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kBF16:
      return visit(Bf16Element());
    case DType::kF16:
      return visit(Fp16Element());
    case DType::kF32:
      break;
  }
  return visit(float());
}

inline bool AreAligned(std::initializer_list<const void*> addresses) {
  uintptr_t bits = 0;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return bits % 16 == 0;
}
// visit(a std::integral_constant): kWide<T> elements at a time, or one.
template <typename T, typename Visit>
absl::Status VisitWidth(bool wide, Visit&& visit) {
  return wide ? visit(std::integral_constant<int, kWide<T>>())
              : visit(std::integral_constant<int, 1>());
}

inline dim3 Grid(int64_t blocks, int64_t rows_of_blocks = 1) {
  FOREBAY_CHECK(blocks > 0 && blocks <= INT32_MAX);
  FOREBAY_CHECK(rows_of_blocks > 0 && rows_of_blocks <= UINT16_MAX);
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows_of_blocks));
}

// Enqueues `kernel`, whose operation the error names.
template <typename... Parameters, typename... Arguments>
absl::Status Launch(Context& context, const char* operation, void (*kernel)(Parameters...),
                    dim3 grid, int threads, Arguments&&... arguments) {
  return context.stream().Launch([&](void* native_stream) -> absl::Status {
    const cudaError_t error = LaunchKernel(kernel, grid, dim3(static_cast<unsigned>(threads)), 0,
                                           static_cast<cudaStream_t>(native_stream), arguments...);
    if (error == cudaSuccess) return absl::OkStatus();
    return CudaError(std::string("launching the kernel of ") + operation, error);
  });
}

}  // namespace forebay::cuda
