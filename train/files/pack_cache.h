// Where packed text is kept, so that the same text, tokenizer and settings are packed once.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/data/data_program.h"

namespace forebay {

// $XDG_CACHE_HOME/forebay/packed, else ~/.cache/forebay/packed; neither is made here. Without
// either, forebay-UID/packed in `shared`, which all users write to: both are made, with mode 0700,
// and EnvironmentError when one is there that is no real folder of this user's alone, as whoever
// put it there could have put tokens of theirs into it.
absl::StatusOr<std::string> PackCacheDirectory(const std::string& shared = "/tmp");

// PackedPathFor with this cache, which a packed file does without.
absl::StatusOr<PackResult> PackedInCache(PackRequest request,
                                         const std::function<bool()>& stop = {});

}  // namespace forebay
