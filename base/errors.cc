#include "forebay/base/errors.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "fmt/format.h"

namespace forebay {
namespace {

constexpr char kExitPayload[] = "forebay/exit_code";
constexpr char kOutOfSpacePayload[] = "forebay/out_of_space";

absl::Status Make(absl::StatusCode code, ExitCode exit_code, std::string_view message) {
  absl::Status status(code, std::string(message));
  status.SetPayload(kExitPayload, absl::Cord(std::to_string(static_cast<int>(exit_code))));
  return status;
}

}  // namespace

absl::Status UsageError(std::string_view message) {
  return Make(absl::StatusCode::kInvalidArgument, ExitCode::kUsage, message);
}
absl::Status BadInputError(std::string_view message) {
  return Make(absl::StatusCode::kInvalidArgument, ExitCode::kBadInput, message);
}
absl::Status DoesNotFitError(std::string_view message) {
  return Make(absl::StatusCode::kResourceExhausted, ExitCode::kDoesNotFit, message);
}
absl::Status StorageError(std::string_view message, int error_number, std::string_view advice) {
  absl::Status status = StorageError(fmt::format("{}: {}{}{}", message, ErrnoText(error_number),
                                                 advice.empty() ? "" : ". ", advice));
  if (error_number == ENOSPC || error_number == EDQUOT) {
    status.SetPayload(kOutOfSpacePayload, absl::Cord());
  }
  return status;
}
absl::Status StorageErrorWithAdvice(std::string_view message, int error_number) {
  return StorageError(message, error_number, StorageAdvice(error_number));
}
absl::Status StorageError(std::string_view message) {
  return Make(absl::StatusCode::kUnknown, ExitCode::kStorage, message);
}
absl::Status OutOfMemoryError(std::string_view message) {
  return Make(absl::StatusCode::kResourceExhausted, ExitCode::kOutOfMemory, message);
}
absl::Status NumericalError(std::string_view message) {
  return Make(absl::StatusCode::kOutOfRange, ExitCode::kNumerical, message);
}
absl::Status CorruptError(std::string_view message) {
  return Make(absl::StatusCode::kDataLoss, ExitCode::kCorrupt, message);
}
absl::Status EnvironmentError(std::string_view message) {
  return Make(absl::StatusCode::kFailedPrecondition, ExitCode::kEnvironment, message);
}
absl::Status RegressedError(std::string_view message) {
  return Make(absl::StatusCode::kFailedPrecondition, ExitCode::kRegressed, message);
}
absl::Status InterruptedError(std::string_view message) {
  return Make(absl::StatusCode::kAborted, ExitCode::kInterrupted, message);
}

absl::Status ErrorOf(ExitCode code, std::string_view message) {
  switch (code) {
    case ExitCode::kOk:
    case ExitCode::kInternal:
      break;
    case ExitCode::kUsage:
      return UsageError(message);
    case ExitCode::kBadInput:
      return BadInputError(message);
    case ExitCode::kDoesNotFit:
      return DoesNotFitError(message);
    case ExitCode::kStorage:
      return StorageError(message);
    case ExitCode::kOutOfMemory:
      return OutOfMemoryError(message);
    case ExitCode::kNumerical:
      return NumericalError(message);
    case ExitCode::kCorrupt:
      return CorruptError(message);
    case ExitCode::kEnvironment:
      return EnvironmentError(message);
    case ExitCode::kRegressed:
      return RegressedError(message);
    case ExitCode::kInterrupted:
      return InterruptedError(message);
  }
  return absl::InternalError(std::string(message));
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return ExitCode::kOk;
  const auto payload = status.GetPayload(kExitPayload);
  if (!payload.has_value()) return ExitCode::kInternal;
  return static_cast<ExitCode>(std::stoi(std::string(*payload)));
}

bool IsOutOfSpace(const absl::Status& status) {
  return status.GetPayload(kOutOfSpacePayload).has_value();
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), fmt::format("{}: {}", context, MessageOf(status)));
  status.ForEachPayload(
      [&](auto url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

std::string_view StorageAdvice(int error_number) {
  switch (error_number) {
    case EIO:
      return "The device or its connection reported an error: look at 'dmesg' and the drive's "
             "health (smartctl -a), then resume, on another drive if it persists";
    case ENOSPC:
    case EDQUOT:
      return "The file system or the quota is full: free space there and resume";
    case EFBIG:
      return "The file would exceed the process's or the file system's size limit: raise 'ulimit "
             "-f' and resume";
    case EROFS:
      return "The file system became read-only, which usually follows a device error: look at "
             "'dmesg'";
    case ENODEV:
    case ENXIO:
    case ESTALE:
      return "The device is gone: reconnect or replace it, mount its file system again, and resume";
    default:
      return "";
  }
}

std::string ErrnoText(int error_number) {
  const char* name = strerrorname_np(error_number);
  const char* text = strerrordesc_np(error_number);
  return fmt::format("{} ({})", name ? name : std::to_string(error_number).c_str(),
                     text ? text : "unknown error");
}

}  // namespace forebay
