// Where packed text is kept, so that the same text, tokenizer and settings are packed once.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "forebay/data/data_program.h"

namespace forebay {

// PackedPathFor with the cache in CacheFolder("packed"), which a packed file does without.
absl::StatusOr<PackResult> PackedInCache(PackRequest request,
                                         const std::function<bool()>& stop = {});

}  // namespace forebay
