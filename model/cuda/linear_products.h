// The matrix products of a linear layer, whose outputs' rows may have gaps. Strides are elements
// between rows; 0: no gaps.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/device/gpu_matmul.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

struct LinearOutput {
  void* rows = nullptr;  // [tokens, out]
  int64_t stride = 0;
  DType dtype = DType::kBF16;  // the context's, or fp32
  bool accumulate = false;
};
// y (+)= x W^T + bias.
absl::Status MultiplyForward(Context& context, const Linear& linear, const void* x, int64_t tokens,
                             const LinearOutput& y);

struct LinearGradient {
  const void* rows = nullptr;  // [tokens, out]
  int64_t stride = 0;
};
// dx (+)= dy W.
absl::Status MultiplyBackwardInput(Context& context, const Linear& linear, const LinearGradient& dy,
                                   int64_t tokens, void* dx, bool accumulate);
// dweight += dy^T x.
absl::Status MultiplyBackwardWeight(Context& context, const Linear& linear, const void* x,
                                    const LinearGradient& dy, int64_t tokens, float* dweight);

// The three, where all but the weights and their gradient begin on 16 bytes. `dweight`, like
// linear.weight and linear.bias, is looked at for what it is aligned to.
struct LinearProducts {
  MatmulProduct forward, backward_input, backward_weight;
};
LinearProducts ProductsOf(const Context& context, const Linear& linear, int64_t tokens,
                          const LinearOutput& y, const LinearGradient& dy, const float* dweight);

}  // namespace forebay::cuda
