#pragma once

#include <string_view>

namespace forebay {

// How often `part` is in `text`.
inline int CountText(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace forebay
