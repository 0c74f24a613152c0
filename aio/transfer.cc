#include "forebay/aio/transfer.h"

#include <algorithm>
#include <cerrno>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// With the back-off below: 0.8 s in all. A device that says EAGAIN for longer than that is not
// coming back.
constexpr int kMaxCallsWithoutProgress = 16;
constexpr int64_t kMaxBackoffUs = 100'000;

std::string_view Advice(int error_number) {
  switch (error_number) {
    case EINVAL:
      return "The file system refused a direct transfer of this alignment: put the store on ext4 "
             "or XFS";
    case EAGAIN:
      return "The kernel kept refusing for lack of resources: lower the load on the machine and "
             "resume";
    default:
      break;
  }
  const std::string_view advice = StorageAdvice(error_number);
  return advice.empty()
             ? "Look at 'dmesg', check that the file is still there and writable, and resume"
             : advice;
}

}  // namespace

Transfer::Next Transfer::Apply(int64_t result) {
  if (result == -EINTR) return RetryUnlessExhausted(0);
  if (result == -EAGAIN) {
    last_result_ = result;
    return RetryUnlessExhausted(
        std::min(int64_t{1000} << std::min(calls_without_progress_, 16), kMaxBackoffUs));
  }
  if (result < 0) {
    last_result_ = result;
    return Next::kFailed;
  }
  if (result >= static_cast<int64_t>(rest().size())) {
    done_bytes_ = static_cast<int64_t>(buffer_.size());
    return Next::kDone;
  }
  // A direct transfer can only go on at a block boundary, so the odd end of a short one is moved
  // again. Worked example: 16384 bytes at 0 came back as 6144; the next call is for 12288 bytes at
  // 4096.
  const int64_t progress_bytes = result / kIoAlignBytes * kIoAlignBytes;
  last_result_ = result;
  if (kind_ == IoKind::kRead && result == 0) {
    at_end_of_file_ = true;
    return Next::kFailed;
  }
  if (progress_bytes == 0) {
    const Next next = RetryUnlessExhausted(0);
    // A file that was cut inside a block gives that block's beginning again and again.
    at_end_of_file_ = kind_ == IoKind::kRead && next == Next::kFailed;
    return next;
  }
  done_bytes_ += progress_bytes;
  calls_without_progress_ = 0;
  backoff_us_ = 0;
  return Next::kCall;
}

Transfer::Next Transfer::RetryUnlessExhausted(int64_t backoff_us) {
  backoff_us_ = backoff_us;
  return ++calls_without_progress_ < kMaxCallsWithoutProgress ? Next::kCall : Next::kFailed;
}

std::string Transfer::Description() const {
  return fmt::format("{} of {} bytes at {} of '{}'{}{}", kind_ == IoKind::kRead ? "read" : "write",
                     buffer_.size(), offset_bytes_, file_.path, file_.device.empty() ? "" : " on ",
                     file_.device);
}

absl::Status Transfer::status() const {
  const std::string what = "aio: " + Description();
  if (at_end_of_file_) {
    return CorruptError(
        fmt::format("{} met the end of the file at {}: the file is truncated. Restore it from a "
                    "copy, or start the run again",
                    what, rest_offset_bytes() + std::max<int64_t>(last_result_, 0)));
  }
  const int error_number = last_result_ < 0 ? static_cast<int>(-last_result_) : EIO;
  if (calls_without_progress_ >= kMaxCallsWithoutProgress) {
    return StorageError(fmt::format("{} made no progress after {} bytes in {} calls", what,
                                    done_bytes_, calls_without_progress_),
                        error_number, Advice(error_number));
  }
  return StorageError(fmt::format("{} failed after {} bytes", what, done_bytes_), error_number,
                      Advice(error_number));
}

}  // namespace forebay
