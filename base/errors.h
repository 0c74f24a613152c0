// Errors that the world can cause, each with the exit code that the command line gives it
// (docs/cli.md, "Exit codes"). Modules return absl::Status; only tools/ turns it into an exit code.
//
// A message has three parts: what failed with its values; the cause or limit; what to do.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace forebay {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,      // a bug in forebay
  kUsage = 2,         // command line or configuration
  kBadInput = 3,      // model or data invalid
  kDoesNotFit = 4,    // found before starting: memory or disk budget too small
  kStorage = 5,       // an I/O operation failed
  kOutOfMemory = 6,   // memory ran out while running
  kNumerical = 7,     // NaN, divergence
  kCorrupt = 8,       // checkpoint or store corrupt or incompatible
  kEnvironment = 9,   // driver, kernel feature, run locked by another process
  kRegressed = 10,    // a comparison regressed
  kInterrupted = 75,  // stopped on request; resumable
};

absl::Status UsageError(std::string_view message);
absl::Status BadInputError(std::string_view message);
absl::Status DoesNotFitError(std::string_view message);
// `error_number`: the errno of the failed call; its name and text are appended to `message`, and
// behind them `advice`, a sentence without its full stop.
absl::Status StorageError(std::string_view message, int error_number, std::string_view advice = "");
absl::Status StorageError(std::string_view message);
absl::Status OutOfMemoryError(std::string_view message);
absl::Status NumericalError(std::string_view message);
absl::Status CorruptError(std::string_view message);
absl::Status EnvironmentError(std::string_view message);
absl::Status RegressedError(std::string_view message);
absl::Status InterruptedError(std::string_view message);

// The error above that has this exit code; an absl::InternalError for kInternal. Requires: not kOk.
absl::Status ErrorOf(ExitCode code, std::string_view message);

// The exit code that `status` was made with; kInternal for a status made without one.
ExitCode ExitCodeOf(const absl::Status& status);

// Whether `status` is a StorageError whose errno says that a disk, or a quota, is full.
bool IsOutOfSpace(const absl::Status& status);

// `status` with `context` and ": " put in front of its message; the code and exit code are kept.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// The message as std::string (Debian's absl::string_view is not std::string_view).
inline std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

// "EIO (Input/output error)".
std::string ErrnoText(int error_number);
// A sentence that says what to do about a read, a write or a flush that failed. "": nothing helps.
std::string_view StorageAdvice(int error_number);
// The StorageError of such a call, with that.
absl::Status StorageErrorWithAdvice(std::string_view message, int error_number);

}  // namespace forebay

#define FOREBAY_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status forebay_status = (expression); !forebay_status.ok()) { \
      return forebay_status;                                                \
    }                                                                       \
  } while (false)

#define FOREBAY_CONCAT_INNER(a, b) a##b
#define FOREBAY_CONCAT(a, b) FOREBAY_CONCAT_INNER(a, b)

// FOREBAY_ASSIGN_OR_RETURN(auto value, MakeValue());
#define FOREBAY_ASSIGN_OR_RETURN(declaration, expression) \
  FOREBAY_ASSIGN_OR_RETURN_IMPL(FOREBAY_CONCAT(forebay_or_, __LINE__), declaration, expression)
#define FOREBAY_ASSIGN_OR_RETURN_IMPL(temporary, declaration, expression) \
  auto temporary = (expression);                                          \
  if (!temporary.ok()) return temporary.status();                         \
  declaration = *std::move(temporary)
