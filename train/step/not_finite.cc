#include "forebay/train/step/not_finite.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::Status NotFiniteError(const NotFinite& found, double loss) {
  return NumericalError(
      fmt::format("step {}: {} is not finite (loss {}). Nothing of this step was applied; the "
                  "run is committed after step {}. Lower --lr or add --warmup, check the data, "
                  "and start again or --resume",
                  found.step, found.where, loss, found.committed_step));
}

absl::Status NotFiniteError(const NotFinite& found, const absl::Status& why, double loss_scale) {
  return NumericalError(fmt::format(
      "step {}: {}: {} is not finite. Nothing of this step was applied; the run is committed after "
      "step {}. The model diverges, or is not made for fp16: start again with --precision=bf16 or "
      "a lower --lr, or with --loss_scaling_args=min_loss_scale below {:g}",
      found.step, MessageOf(why), found.where, found.committed_step, loss_scale));
}

}  // namespace forebay
