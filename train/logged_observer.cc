#include "forebay/train/logged_observer.h"

#include "forebay/base/errors.h"

namespace forebay {

absl::Status LoggedObserver::OpenLog(const std::string& path) {
  const std::lock_guard lock(mutex_);
  FOREBAY_ASSIGN_OR_RETURN(log_, LineLog::Open(path));
  for (const std::string& line : early_) FOREBAY_RETURN_IF_ERROR(log_->Append(line));
  early_.clear();
  return absl::OkStatus();
}

absl::Status LoggedObserver::Note(const std::string& line) {
  inner_.OnNote(line);
  return Log(line);
}

absl::Status LoggedObserver::Log(const std::string& line) {
  std::string dated = WithTimestamp(line);
  const std::lock_guard lock(mutex_);
  if (log_.has_value()) return log_->Append(dated);
  early_.push_back(std::move(dated));
  return absl::OkStatus();
}

void LoggedObserver::OnNote(const std::string& line) {
  Note(line).IgnoreError();
}

// Of a disk that stalls the log may be the next victim, so the person hears of it first.
void LoggedObserver::OnWarning(const std::string& line) {
  inner_.OnWarning(line);
  Log("warning: " + line).IgnoreError();
}

}  // namespace forebay
