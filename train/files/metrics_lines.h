// The lines of metrics.jsonl from its last to its first, for those who need the newest ones of a
// file of any size. Writing them is train/run/metrics.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

// The step of a line; -1: it is not a line of a step.
int64_t StepOfLine(const absl::StatusOr<Json>& line);

// The lines of a file, from its last to its first. Whatever its size, a few lines are in memory.
// Owned by one thread.
class LinesFromTheEnd {
 public:
  // `fd` and `path` must outlive it.
  LinesFromTheEnd(int fd, const std::string& path, int64_t size_bytes)
      : fd_(fd), path_(path), buffer_begin_(size_bytes) {}

  struct Line {
    int64_t begin_bytes = 0;
    int64_t end_bytes = 0;  // behind its newline
    std::string_view text;  // until the next call; of a line that is too long, its beginning
  };
  // The first is what lies behind the last newline: nothing, or a line that was torn. Nothing
  // before the first line of the file. StorageError.
  absl::StatusOr<std::optional<Line>> Previous();
  static constexpr int64_t kMaxLineBytes = int64_t{64} << 10;

 private:
  Line Take(size_t begin);
  absl::Status ReadMore();

  const int fd_;
  const std::string& path_;
  int64_t buffer_begin_;  // in the file
  int64_t end_bytes_ = buffer_begin_;
  // Bytes that were read and not taken. They end with a newline: at first with one that the file
  // need not have.
  std::string buffer_ = "\n";
  std::string taken_;
};

// The sum of "write_bytes" over the lines of steps after `step`, as far as they can be read: a log
// that is lost stops no run.
int64_t WriteBytesInMetrics(const std::string& path, int64_t step);

}  // namespace forebay
