// What remains of one transfer after each system call: the rules for short transfers, retries and
// ends of file that every engine shares, whichever way it makes its calls. Pure: no system call, no
// sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "forebay/aio/engine.h"

namespace forebay {

// The file as messages name it.
struct FileName {
  std::string_view path;
  std::string_view device;  // "vda"; empty: unknown
};

// Whether two ranges of memory have a byte in common.
inline bool Overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Thread-compatible. Borrows `buffer` and the texts of `file`. Not for flushes, which have nothing
// to continue.
class Transfer {
 public:
  enum class Next : uint8_t {
    kCall,    // make a call for rest() at rest_offset_bytes(), after waiting backoff_us()
    kDone,    // everything was moved
    kFailed,  // status() says why
  };

  Transfer() = default;
  Transfer(IoKind kind, int64_t offset_bytes, std::span<std::byte> buffer, const FileName& file)
      : kind_(kind), offset_bytes_(offset_bytes), buffer_(buffer), file_(file) {}

  std::span<std::byte> rest() const { return buffer_.subspan(static_cast<size_t>(done_bytes_)); }
  int64_t rest_offset_bytes() const { return offset_bytes_ + done_bytes_; }
  int64_t backoff_us() const { return backoff_us_; }
  std::span<std::byte> buffer() const { return buffer_; }
  // "read of 4096 bytes at 8192 of 'state.fbs' on vda".
  std::string Description() const;

  // Takes the result of a call for rest(): bytes moved, or -errno.
  Next Apply(int64_t result);

  // StorageError or CorruptError after kFailed; allocates only then.
  absl::Status status() const;

 private:
  Next RetryUnlessExhausted(int64_t backoff_us);

  IoKind kind_ = IoKind::kRead;
  int64_t offset_bytes_ = 0;
  std::span<std::byte> buffer_;
  FileName file_;
  int64_t done_bytes_ = 0;  // always a multiple of kIoAlignBytes until all is done
  int64_t backoff_us_ = 0;
  int calls_without_progress_ = 0;
  int64_t last_result_ = 0;  // of the latest call that was not interrupted
  bool at_end_of_file_ = false;
};

}  // namespace forebay
