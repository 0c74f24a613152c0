// An intent of the store (swap/store/tensor_store.h) describes an update beside its gradients, so
// that another process can apply it (--durability=replay). Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

struct KeptUpdate {
  UpdateScalars scalars;
  Json metrics;  // of the step: what does not depend on the clock
};

Json EncodeUpdate(const UpdateScalars& scalars, const Json& metrics);
// The same numbers, bit for bit. CorruptError when `intent` is not one of a trainer for `step`.
absl::StatusOr<KeptUpdate> DecodeUpdate(const StepIntent& intent, int64_t step);

}  // namespace forebay
