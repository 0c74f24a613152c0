// What stands in a checkout in place of a file that Git LFS has not fetched: a few lines of text.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

// BadInputError where a file that begins so is one. `beginning`: a line of it or more.
inline absl::Status RefuseLfsPointer(std::string_view beginning, std::string_view path) {
  constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/";
  if (!beginning.starts_with(kFirstLine)) return absl::OkStatus();
  return BadInputError(
      fmt::format("'{}': this is a Git LFS pointer, not the file itself; run git lfs pull", path));
}

}  // namespace forebay
