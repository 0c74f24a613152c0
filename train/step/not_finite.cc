#include "forebay/train/step/not_finite.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

namespace {

std::string WhatIsKept(const NotFinite& found) {
  return found.committed_step < 0
             ? "nothing of the run is kept (--durability=none, --export=none)"
             : fmt::format("the run is committed after step {}", found.committed_step);
}

}  // namespace

absl::Status NotFiniteError(const NotFinite& found, double loss) {
  return NumericalError(
      fmt::format("step {}: {} is not finite (loss {}). Nothing of this step was applied; {}. "
                  "Lower --lr or add "
                  "--warmup, check the data, and start again{}",
                  found.step, found.where, loss, WhatIsKept(found),
                  found.committed_step < 0 ? "" : " or --resume"));
}

absl::Status NotFiniteError(const NotFinite& found, const absl::Status& why, double loss_scale) {
  return NumericalError(
      fmt::format("step {}: {}: {} is not finite. Nothing of this step was applied; {}. The model "
                  "diverges, or is not made for fp16: start again with --precision=bf16 or "
                  "a lower --lr, or with --loss_scaling_args=min_loss_scale below {:g}",
                  found.step, MessageOf(why), found.where, WhatIsKept(found), loss_scale));
}

}  // namespace forebay
