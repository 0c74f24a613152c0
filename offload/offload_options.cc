#include "forebay/offload/offload_options.h"

namespace forebay {

OptimizerConfig RuleOf(const OffloadOptions& options) {
  return {.kind = options.optimizer,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .momentum = options.momentum,
          .nesterov = options.nesterov};
}

}  // namespace forebay
