// Clipping by the global norm. Pure.
#pragma once

#include <algorithm>

namespace forebay {

// What every gradient is multiplied by so that their norm is at most `clip`; 0: no clipping. As
// torch.nn.utils.clip_grad_norm_, its 1e-6 included.
inline double ClipScale(double clip, double gradient_norm) {
  return clip > 0 ? std::min(1.0, clip / (gradient_norm + 1e-6)) : 1.0;
}

}  // namespace forebay
