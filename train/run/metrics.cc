#include "forebay/train/run/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "fmt/chrono.h"
#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"
#include "forebay/train/files/metrics_lines.h"

namespace forebay {
namespace {

// The part of a file that is kept: up to where, and its last line.
struct KeptLines {
  int64_t bytes = 0;
  Json last;                // null: none is of a step
  int64_t num_damaged = 0;  // of the lines behind it
};

absl::StatusOr<KeptLines> LinesUpTo(int64_t committed_step, int fd, const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const int64_t size_bytes, FileSize(path));
  LinesFromTheEnd lines(fd, path, size_bytes);
  FOREBAY_ASSIGN_OR_RETURN(auto line, lines.Previous());
  KeptLines kept;
  int64_t later_bytes = line->begin_bytes;  // where lines of later steps begin
  for (;;) {
    FOREBAY_ASSIGN_OR_RETURN(line, lines.Previous());
    if (!line.has_value()) break;
    if (line->text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    absl::StatusOr<Json> json = ParseJson(line->text, path);
    const int64_t step = StepOfLine(json);
    if (step < 0) {
      ++kept.num_damaged;
    } else if (step > committed_step) {
      later_bytes = line->begin_bytes;
    } else {
      kept.bytes = line->end_bytes;
      kept.last = *std::move(json);
      return kept;
    }
  }
  // No line of a step that was committed: what else there is stays.
  return KeptLines{.bytes = later_bytes, .last = Json(), .num_damaged = 0};
}

absl::Status Truncate(int fd, int64_t size_bytes, const std::string& path) {
  if (::ftruncate(fd, size_bytes) == 0) return absl::OkStatus();
  return StorageErrorWithAdvice(fmt::format("truncating '{}' to {} bytes failed", path, size_bytes),
                                errno);
}

}  // namespace

absl::StatusOr<LineLog> LineLog::Open(const std::string& path) {
  LineLog log;
  log.path_ = path;
  FOREBAY_ASSIGN_OR_RETURN(log.fd_, OpenFile(path, O_RDWR | O_CREAT));
  FOREBAY_ASSIGN_OR_RETURN(log.size_bytes_, FileSize(path));
  return log;
}

LineLog::~LineLog() {
  // A truncation to the size that it has frees the blocks behind it. What fails here is some space.
  if (reserved_ && ::ftruncate(fd_.get(), size_bytes_) != 0) return;
}

absl::Status LineLog::Reserve(int64_t bytes) {
  const int error = ReserveFileSpace(fd_.get(), size_bytes_ + bytes, FileLength::kStays);
  reserved_ = error == 0;
  if (error == EFBIG) return FileTooLargeError(fmt::format("'{}'", path_), size_bytes_ + bytes);
  if (error != ENOSPC && error != EDQUOT) return absl::OkStatus();
  return DoesNotFitError(
      fmt::format("'{}' needs up to {} for its lines, and the disk has no room for them ({}). Free "
                  "space there, or choose another --out",
                  path_, FormatBytes(bytes), ErrnoText(error)));
}

absl::Status LineLog::Append(std::string_view line) {
  const std::string text = fmt::format("{}\n", line);
  FOREBAY_RETURN_IF_ERROR(PwriteAll(fd_.get(), std::as_bytes(std::span(text)), size_bytes_, path_));
  size_bytes_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::Status LineLog::ReplaceLast(std::string_view line) {
  std::string tail(static_cast<size_t>(std::min(size_bytes_, kMaxLineBytes)), '\0');
  FOREBAY_CHECK(!tail.empty());
  const int64_t tail_begin = size_bytes_ - static_cast<int64_t>(tail.size());
  FOREBAY_RETURN_IF_ERROR(
      PreadAll(fd_.get(), std::as_writable_bytes(std::span(tail)), tail_begin, path_));
  const size_t newline = tail.size() < 2 ? std::string::npos : tail.rfind('\n', tail.size() - 2);
  FOREBAY_CHECK(newline != std::string::npos || tail_begin == 0);
  const int64_t begin =
      newline == std::string::npos ? 0 : tail_begin + static_cast<int64_t>(newline) + 1;
  FOREBAY_RETURN_IF_ERROR(Truncate(fd_.get(), begin, path_));
  size_bytes_ = begin;
  return Append(line);
}

namespace {

// Lines that a disk has lost are no reason not to go on. `why`: the error of reading them.
absl::Status SetAside(const std::string& path, const absl::Status& why, std::string& note) {
  const std::string aside = path + ".unreadable";
  if (::rename(path.c_str(), aside.c_str()) != 0) {
    return StorageErrorWithAdvice(fmt::format("renaming '{}', which cannot be read, failed", path),
                                  errno);
  }
  note = fmt::format(
      "'{}' could not be read, and is '{}' now; the lines of the steps to come are "
      "in a new file: {}",
      path, aside, MessageOf(why));
  return absl::OkStatus();
}

absl::Status AlignExisting(const std::string& path, int64_t committed_step,
                           AlignedMetrics& aligned) {
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDWR | O_NOFOLLOW));
  absl::StatusOr<KeptLines> kept = LinesUpTo(committed_step, fd.get(), path);
  if (ExitCodeOf(kept.status()) == ExitCode::kStorage) {
    return SetAside(path, kept.status(), aligned.note);
  }
  FOREBAY_RETURN_IF_ERROR(kept.status());
  FOREBAY_RETURN_IF_ERROR(Truncate(fd.get(), kept->bytes, path));
  if (kept->num_damaged > 0) {
    aligned.note = fmt::format("'{}' ended with damaged lines, which are removed: {}", path,
                               kept->num_damaged);
  }
  aligned.line = std::move(kept->last);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AlignedMetrics> AlignMetrics(const std::string& path, int64_t committed_step,
                                            const Json& committed_line) {
  AlignedMetrics aligned;
  if (FileExists(path)) FOREBAY_RETURN_IF_ERROR(AlignExisting(path, committed_step, aligned));
  if (StepOfLine(aligned.line) == committed_step) return aligned;
  aligned.line = Json();
  if (StepOfLine(committed_line) != committed_step) return aligned;
  FOREBAY_ASSIGN_OR_RETURN(LineLog log, LineLog::Open(path));
  FOREBAY_RETURN_IF_ERROR(log.Append(committed_line.dump()));
  aligned.line = committed_line;
  return aligned;
}

std::string WithTimestamp(std::string_view text) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), text);
}

}  // namespace forebay
