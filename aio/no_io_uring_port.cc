// Stands in for io_uring_port.cc where the build found no liburing.
#include "forebay/aio/io_port.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<IoPort>> OpenIoUringPort() {
  return EnvironmentError(
      "this forebay was built without io_uring. Install liburing-dev and build it again");
}

}  // namespace forebay
