#include "forebay/train/logged_observer.h"

#include "forebay/base/errors.h"

namespace forebay {

absl::Status LoggedObserver::OpenLog(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(log_, LineLog::Open(path));
  FOREBAY_RETURN_IF_ERROR(log_->Reserve(kReservedEventBytes));
  return WriteWaiting();
}

LoggedObserver::~LoggedObserver() {
  WriteWaiting().IgnoreError();
}

absl::Status LoggedObserver::Note(const std::string& line) {
  inner_.OnNote(line);
  return Log(line);
}

absl::Status LoggedObserver::Log(const std::string& line) {
  Queue(line);
  return WriteWaiting();
}

void LoggedObserver::Queue(const std::string& line) {
  std::string dated = WithTimestamp(line);
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(dated));
}

absl::Status LoggedObserver::WriteWaiting() {
  if (!log_.has_value()) return absl::OkStatus();
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(mutex_);
    lines.swap(waiting_);
  }
  for (const std::string& line : lines) FOREBAY_RETURN_IF_ERROR(log_->Append(line));
  return absl::OkStatus();
}

void LoggedObserver::OnNote(const std::string& line) {
  Note(line).IgnoreError();
}

// Comes from the thread that watches a transfer that stalls. The log may be on the same disk:
// written here, it could stall too, and nobody would give the transfer up.
void LoggedObserver::OnWarning(const std::string& line) {
  inner_.OnWarning(line);
  Queue("warning: " + line);
}

}  // namespace forebay
