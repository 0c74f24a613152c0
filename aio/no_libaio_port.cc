// Stands in for libaio_port.cc where the build found no libaio.
#include "forebay/aio/io_port.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<IoPort>> OpenLibaioPort() {
  return EnvironmentError(
      "this forebay was built without libaio. Install libaio-dev and build it again");
}

}  // namespace forebay
