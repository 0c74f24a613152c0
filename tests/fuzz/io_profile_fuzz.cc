// io.json, which `swap-bench tune` writes and anybody may edit.
#include <string>
#include <string_view>

#include "forebay/aio/io_profile.h"
#include "forebay/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<IoProfile> profile = ParseIoProfile(text, "io.json");
  if (!profile.ok()) return 0;
  // What is taken can be written, read again, and used as it is.
  const std::string written = ToJson(*profile, "0").dump();
  const absl::StatusOr<IoProfile> again = ParseIoProfile(written, "io.json");
  FOREBAY_CHECK(again.ok() && ToJson(*again, "0").dump() == written);
  for (const DeviceProfile& device : profile->devices) {
    const EngineOptions options = WithProfile({}, device);
    FOREBAY_CHECK(options.block_bytes >= kIoAlignBytes && options.burst_bytes > 0);
    FOREBAY_CHECK(options.max_in_flight_bytes >= options.block_bytes);
    FOREBAY_CHECK(device.read_bytes_per_s > 0 && device.write_bytes_per_s > 0);
  }
  return 0;
}
