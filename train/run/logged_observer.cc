#include "forebay/train/run/logged_observer.h"

#include "forebay/base/errors.h"

namespace forebay {

absl::Status LoggedObserver::OpenLog(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(log_, LineLog::Open(path));
  FOREBAY_RETURN_IF_ERROR(log_->Reserve(kReservedEventBytes));
  WriteWaiting();
  return absl::OkStatus();
}

LoggedObserver::~LoggedObserver() {
  WriteWaiting();
}

void LoggedObserver::Log(const std::string& line) {
  Queue(line);
  WriteWaiting();
}

void LoggedObserver::Queue(const std::string& line) {
  std::string dated = WithTimestamp(line);
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(dated));
}

void LoggedObserver::WriteWaiting() {
  if (!log_.has_value() && !is_given_up_) return;
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(mutex_);
    lines.swap(waiting_);
  }
  if (is_given_up_) return;
  absl::Status written;
  for (const std::string& line : lines) written.Update(log_->Append(line));
  if (written.ok()) return;
  log_.reset();
  is_given_up_ = true;
  inner_.OnWarning("the log is given up: " + MessageOf(written));
}

void LoggedObserver::OnNote(const std::string& line) {
  inner_.OnNote(line);
  Log(line);
}

// Comes from the thread that watches a transfer that stalls. The log may be on the same disk:
// written here, it could stall too, and nobody would give the transfer up.
void LoggedObserver::OnWarning(const std::string& line) {
  inner_.OnWarning(line);
  Queue("warning: " + line);
}

}  // namespace forebay
