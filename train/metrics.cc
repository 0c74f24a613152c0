#include "forebay/train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "fmt/chrono.h"
#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

constexpr int64_t kMaxMetricsBytes = int64_t{4} << 30;

// -1: not a line of a step.
int64_t StepOf(const absl::StatusOr<Json>& line) {
  if (!line.ok() || !line->is_object() || !line->contains("step")) return -1;
  const Json& step = (*line)["step"];
  return step.is_number_integer() ? step.get<int64_t>() : -1;
}

absl::Status Truncate(int fd, int64_t size_bytes, const std::string& path) {
  if (::ftruncate(fd, size_bytes) == 0) return absl::OkStatus();
  return StorageError(fmt::format("truncating '{}' to {} bytes failed", path, size_bytes), errno);
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

absl::StatusOr<Json> AlignMetrics(const std::string& path, int64_t committed_step,
                                  const Json& committed_line) {
  std::string text;
  if (FileExists(path)) {
    FOREBAY_ASSIGN_OR_RETURN(text, ReadWholeFile(path, kMaxMetricsBytes));
  }
  size_t keep = 0;
  Json last;
  for (;;) {
    const size_t newline = text.find('\n', keep);
    if (newline == std::string::npos) break;
    absl::StatusOr<Json> line =
        ParseJson(std::string_view(text).substr(keep, newline - keep), path);
    const int64_t step = StepOf(line);
    if (step < 0 || step > committed_step) break;
    last = *std::move(line);
    keep = newline + 1;
  }
  if (keep < text.size()) {
    FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_WRONLY | O_NOFOLLOW));
    FOREBAY_RETURN_IF_ERROR(Truncate(fd.get(), static_cast<int64_t>(keep), path));
  }
  if (StepOf(last) == committed_step) return last;
  if (StepOf(committed_line) != committed_step) return Json();
  FOREBAY_ASSIGN_OR_RETURN(LineLog log, LineLog::Open(path));
  FOREBAY_RETURN_IF_ERROR(log.Append(committed_line.dump()));
  return committed_line;
}

std::string WithTimestamp(std::string_view text) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), text);
}

}  // namespace forebay
