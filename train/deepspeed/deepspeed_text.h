// DeepSpeed's configurations as people write them: JSON with comments and commas too many, or a
// Python dict.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

// `source`: for errors. UsageError with line and column: it is neither; a key is there twice; the
// outermost is no object.
absl::StatusOr<Json> ParseDeepSpeedText(std::string_view text, std::string_view source);

}  // namespace forebay
