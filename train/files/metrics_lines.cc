#include "forebay/train/files/metrics_lines.h"

#include <fcntl.h>

#include <algorithm>
#include <span>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {

int64_t StepOfLine(const absl::StatusOr<Json>& line) {
  if (!line.ok() || !line->is_object() || !line->contains("step")) return -1;
  return IntegerOf((*line)["step"]).value_or(-1);
}

absl::StatusOr<std::optional<LinesFromTheEnd::Line>> LinesFromTheEnd::Previous() {
  while (!buffer_.empty()) {
    const size_t newline =
        buffer_.size() < 2 ? std::string::npos : buffer_.rfind('\n', buffer_.size() - 2);
    if (newline != std::string::npos || buffer_begin_ == 0) {
      return Take(newline == std::string::npos ? 0 : newline + 1);
    }
    // A line that is too long is none of ours: its end is forgotten.
    if (std::ssize(buffer_) > kMaxLineBytes) buffer_ = "\n";
    FOREBAY_RETURN_IF_ERROR(ReadMore());
  }
  return std::nullopt;
}

LinesFromTheEnd::Line LinesFromTheEnd::Take(size_t begin) {
  taken_ = buffer_.substr(begin);
  taken_.pop_back();
  buffer_.resize(begin);
  Line line;
  line.begin_bytes = buffer_begin_ + static_cast<int64_t>(begin);
  line.end_bytes = std::exchange(end_bytes_, line.begin_bytes);
  line.text = taken_;
  return line;
}

absl::Status LinesFromTheEnd::ReadMore() {
  constexpr int64_t kMostBytes = 16384;
  const int64_t bytes = std::min(kMostBytes, buffer_begin_);
  std::string more(static_cast<size_t>(bytes), '\0');
  FOREBAY_RETURN_IF_ERROR(
      PreadAll(fd_, std::as_writable_bytes(std::span(more)), buffer_begin_ - bytes, path_));
  buffer_begin_ -= bytes;
  buffer_.insert(0, more);
  return absl::OkStatus();
}

int64_t WriteBytesInMetrics(const std::string& path, int64_t step) {
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY | O_NOFOLLOW);
  const absl::StatusOr<int64_t> size_bytes = FileSize(path);
  if (!fd.ok() || !size_bytes.ok()) return 0;
  LinesFromTheEnd lines(fd->get(), path, *size_bytes);
  int64_t sum = 0;
  for (;;) {
    const auto line = lines.Previous();
    if (!line.ok() || !line->has_value()) return sum;
    const absl::StatusOr<Json> json = ParseJson((*line)->text, path);
    const int64_t step_of_line = StepOfLine(json);
    if (step_of_line < 0) continue;
    if (step_of_line <= step) return sum;
    if (json->contains("write_bytes")) sum += IntegerOf((*json)["write_bytes"]).value_or(0);
  }
}

}  // namespace forebay
