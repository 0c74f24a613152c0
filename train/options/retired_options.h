// Options that were removed. Whoever still gives one is told what to do instead.
#pragma once

#include <string_view>

namespace forebay {

// What to do instead of giving the option `name`, for its error; "": there never was one. Hyphens
// count as underscores.
std::string_view InsteadOfOption(std::string_view name);

}  // namespace forebay
