// One linear layer's weights, as every backend's operators take them.
#pragma once

#include <cstdint>

#include "forebay/base/dtype.h"

namespace forebay {

// y = x W^T + bias with W [out, in], or y = x W + bias with W [in, out].
struct Linear {
  DType dtype = DType::kBF16;
  const void* weight = nullptr;
  const void* bias = nullptr;  // [out] in `dtype`, or nullptr
  int64_t in = 0, out = 0;
  bool in_out = false;  // W is stored [in, out]
  int64_t row_stride =
      0;  // elements between rows of W as stored (a slice of a fused tensor); 0: dense
};

}  // namespace forebay
