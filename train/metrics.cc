#include "forebay/train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "fmt/chrono.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int64_t kMaxMetricsBytes = int64_t{4} << 30;

// -1: not a line of a step.
int64_t StepOf(std::string_view line, const std::string& path) {
  const auto json = ParseJson(line, path);
  if (!json.ok() || !json->is_object() || !json->contains("step")) return -1;
  const Json& step = (*json)["step"];
  return step.is_number_integer() ? step.get<int64_t>() : -1;
}

}  // namespace

absl::StatusOr<LineLog> LineLog::Open(const std::string& path) {
  LineLog log;
  log.path_ = path;
  FOREBAY_ASSIGN_OR_RETURN(log.fd_, OpenFile(path, O_WRONLY | O_CREAT));
  FOREBAY_ASSIGN_OR_RETURN(log.size_bytes_, FileSize(path));
  return log;
}

absl::Status LineLog::Append(std::string_view line) {
  const std::string text = fmt::format("{}\n", line);
  FOREBAY_RETURN_IF_ERROR(PwriteAll(fd_.get(), std::as_bytes(std::span(text)), size_bytes_, path_));
  size_bytes_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::Status AlignMetrics(const std::string& path, int64_t committed_step,
                          const Json& committed_line) {
  std::string text;
  if (FileExists(path)) {
    FOREBAY_ASSIGN_OR_RETURN(text, ReadWholeFile(path, kMaxMetricsBytes));
  }
  size_t keep = 0;
  int64_t last_step = -1;
  for (;;) {
    const size_t newline = text.find('\n', keep);
    if (newline == std::string::npos) break;
    const int64_t step = StepOf(std::string_view(text).substr(keep, newline - keep), path);
    if (step < 0 || step > committed_step) break;
    last_step = step;
    keep = newline + 1;
  }
  if (keep < text.size()) {
    FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_WRONLY | O_NOFOLLOW));
    if (::ftruncate(fd.get(), static_cast<off_t>(keep)) != 0) {
      return StorageError(fmt::format("truncating '{}' to {} bytes failed", path, keep), errno);
    }
  }
  if (last_step == committed_step || !committed_line.is_object()) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(LineLog log, LineLog::Open(path));
  return log.Append(committed_line.dump());
}

std::string WithTimestamp(std::string_view text) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), text);
}

}  // namespace forebay
