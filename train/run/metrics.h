// The logs of a run: metrics.jsonl (one object per step, the truth that other formats are derived
// from) and events.log.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/train/files/metrics_lines.h"

namespace forebay {

// A file that only grows, one line at a time. Owned by one thread.
class LineLog {
 public:
  LineLog() = default;
  ~LineLog();  // gives back what was reserved and not used
  LineLog(LineLog&&) = default;
  LineLog& operator=(LineLog&&) = default;

  // Opens or creates `path` for appending.
  static absl::StatusOr<LineLog> Open(const std::string& path);
  // Makes sure that so many more bytes can be appended whatever else fills the disk, where the file
  // system can promise that. DoesNotFitError when they are not free.
  absl::Status Reserve(int64_t bytes);
  absl::Status Append(std::string_view line);
  // Puts `line` in the place of the last one. Requires: the log has lines, the last of at most
  // kMaxLineBytes.
  absl::Status ReplaceLast(std::string_view line);
  static constexpr int64_t kMaxLineBytes = LinesFromTheEnd::kMaxLineBytes;

 private:
  UniqueFd fd_;
  std::string path_;
  int64_t size_bytes_ = 0;
  bool reserved_ = false;
};

// The line of a step, generously.
inline constexpr int64_t kMetricsLineBytes = 1024;
// A longer run has space for the first lines: for months of them.
inline constexpr int64_t kMostReservedLines = 100'000;
// The notes of a run: hundreds of lines.
inline constexpr int64_t kReservedEventBytes = int64_t{64} << 10;

// The result of AlignMetrics.
struct AlignedMetrics {
  Json line;         // of the committed step; null: there is none
  std::string note;  // what was dropped and was no line of a step, for the log; "": nothing
};
// Makes the file end with the line of the committed step. Drops what follows the last line of a
// step up to that one: lines of later steps (they were not committed before a crash, and will be
// run again), a torn last line, blank ones. Before it everything stays, whatever it is; and all of
// a file without such a line, but later steps. Where a kill came between the commit and its line,
// `committed_line`, an object with "step" that the commit carries, stands in for it; null: the
// commit carries none. Reads the file from its end, a few lines at a time. One that the disk cannot
// read is set aside, under a name with ".unreadable", and noted.
absl::StatusOr<AlignedMetrics> AlignMetrics(const std::string& path, int64_t committed_step,
                                            const Json& committed_line);

// "2026-11-21T08:30:00Z text".
std::string WithTimestamp(std::string_view text);

}  // namespace forebay
