// Requests of any address, offset and length, over an Engine, which takes aligned ones: what the
// disk engine of c.h adds to aio/.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/file.h"

namespace forebay::capi {

struct IoRequest {
  IoKind kind = IoKind::kRead;  // no flush
  std::string path;             // of the file; "": `fd`
  int fd = -1;                  // of the file; borrowed for the call that submits
  int64_t offset_bytes = 0;
  std::span<std::byte> memory;  // until the request was waited for
};

// The granularity of a file's direct transfers; 1: it has none, and takes anything.
struct TransferLimits {
  int64_t range_bytes = 1;   // offset and length
  int64_t memory_bytes = 1;  // the address
  bool direct() const { return range_bytes > 1; }
};

// A request's range: what can be moved directly, and what lies before and behind it.
struct DirectPart {
  int64_t first_byte = 0;
  int64_t num_bytes = 0;
};
DirectPart DirectPartOf(const TransferLimits& limits, int64_t offset_bytes,
                        std::span<const std::byte> memory);

// Thread-safe.
class IoRequests {
 public:
  explicit IoRequests(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~IoRequests();

  // BadInputError: there is no file to read, or it ends before the range. StorageError.
  absl::StatusOr<uint64_t> Submit(const IoRequest& request);
  // UsageError: no request has this ticket, or it was waited for. Engine::Wait's errors.
  absl::Status Wait(uint64_t ticket);
  // Waits for all that were submitted before; the first error. `num_ended` counts those with one
  // too.
  absl::Status WaitAll(int64_t& num_ended);

  const Engine& engine() const { return *engine_; }

 private:
  // The engine's part of a request: the part before the direct one, that, the part behind it.
  struct Running {
    std::array<IoOp, 3> ops;
    size_t num_ops = 0;
    std::array<int, 2> files = {-1, -1};  // of the engine: direct, through the page cache
  };

  void Start(Running& running, const IoRequest& request, const TransferLimits& limits,
             UniqueFd direct, UniqueFd cached);
  absl::Status Finish(Running& running);

  const std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  uint64_t last_ticket_ = 0;                              // mutex
  std::map<uint64_t, std::unique_ptr<Running>> running_;  // mutex
};

}  // namespace forebay::capi
