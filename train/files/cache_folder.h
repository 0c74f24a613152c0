// Where things are kept that can be made again.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace forebay {

// $XDG_CACHE_HOME/forebay/NAME, else ~/.cache/forebay/NAME; neither is made here. Without either,
// forebay-UID/NAME in `shared`, which all users write to: both are made, with mode 0700, and
// EnvironmentError when one is there that is no real folder of this user's alone, as whoever put it
// there could have put things of theirs into it.
absl::StatusOr<std::string> CacheFolder(const std::string& name,
                                        const std::string& shared = "/tmp");

}  // namespace forebay
