// The bound on what one step or one pass of an evaluation computes with.
#pragma once

#include <cstdint>

namespace forebay {

// Tokens: far more than anybody trains with at once, and little enough that no sum of bytes
// overflows for the largest model that is accepted (decoder_config.cc).
inline constexpr int64_t kMostTokensAtOnce = int64_t{1} << 28;

}  // namespace forebay
