// This build has no CUDA code.
#include "forebay/base/errors.h"
#include "forebay/collective/sum_cuda.h"

namespace forebay {

absl::Status SumInRankOrderCuda(std::span<const float* const>, float*, int64_t, void*) {
  return EnvironmentError("this forebay was built without CUDA");
}

}  // namespace forebay
