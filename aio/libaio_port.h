// The system calls of Linux native AIO, as a seam: what they may answer (fewer taken than offered,
// EAGAIN, fewer events than asked for) a test has to be able to say.
#pragma once

#include <libaio.h>

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/aio/io_port.h"

namespace forebay {

// Owned by one thread. Results are -errno or counts, as libaio gives them.
class LibaioCalls {
 public:
  virtual ~LibaioCalls() = default;
  virtual int Setup(int depth, io_context_t* context);
  virtual int Submit(io_context_t context, long count, iocb** calls);
  virtual int GetEvents(io_context_t context, long least, long most, io_event* events,
                        timespec* timeout);
  virtual int Cancel(io_context_t context, iocb* call, io_event* event);
  virtual int Destroy(io_context_t context);
};

absl::StatusOr<std::unique_ptr<IoPort>> OpenLibaioPort(std::unique_ptr<LibaioCalls> calls);

}  // namespace forebay
