// Formatted output that never fails: fmt::print throws where a file cannot be written, and a closed
// pipe or a full disk behind stderr must not end a training run. A result on stdout that was not
// written is told by RunCommandLine at the end (std::ferror).
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "fmt/format.h"

namespace forebay {

template <typename... Values>
void PrintTo(std::FILE* file, fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), file);
}

}  // namespace forebay
