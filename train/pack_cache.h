// Where packed text is kept, so that the same text, tokenizer and settings are packed once.
#pragma once

#include <string>

namespace forebay {

// $XDG_CACHE_HOME/forebay/packed, else ~/.cache/forebay/packed, else a folder under /tmp. Not made
// here.
std::string PackCacheDirectory();

}  // namespace forebay
