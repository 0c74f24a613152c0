#include "forebay/model/cuda/scratch.h"

namespace forebay::cuda {

int64_t ScratchBytes(DType /*dtype*/, int64_t /*max_tokens*/, int64_t /*hidden*/,
                     int64_t /*intermediate*/, int64_t /*vocab*/, int64_t /*heads*/,
                     int64_t /*head_dim*/) {
  return 0;
}

}  // namespace forebay::cuda
