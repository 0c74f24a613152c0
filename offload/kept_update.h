// An intent of the store (swap/store/tensor_store.h) describes an update beside its gradients, so
// that another process can apply it (--durability=replay). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

struct KeptUpdate {
  UpdateScalars scalars;
  std::vector<ParameterGroup> groups;  // empty: those that the run began with
  Json kept;                           // the caller's own: an object or null
};

Json EncodeUpdate(const KeptUpdate& update);
// The same numbers, bit for bit. CorruptError when `intent` is not one of a trainer for `step`.
absl::StatusOr<KeptUpdate> DecodeUpdate(const StepIntent& intent, int64_t step);

}  // namespace forebay
