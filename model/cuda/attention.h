// Attention on units of one's choice, for tests: AttentionForward and AttentionBackward (ops.h)
// choose by element type and card.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

enum class AttentionUnits : uint8_t {
  kTensorCores,  // bf16 and fp16, since sm_80
  kSimt          // every type, every card
};
absl::Status AttentionForwardOn(AttentionUnits units, Context& context, const AttentionShape& shape,
                                const void* q, const void* k, const void* v, void* o,
                                float* log_sum_exp);
absl::Status AttentionBackwardOn(AttentionUnits units, Context& context,
                                 const AttentionShape& shape, const void* q, const void* k,
                                 const void* v, const void* o, const float* log_sum_exp,
                                 const void* d_o, void* dq, void* dk, void* dv);

}  // namespace forebay::cuda
