#include "forebay/measure/load/kernel_counters.h"

#include <sys/resource.h>
#include <sys/sysmacros.h>

#include <array>
#include <charconv>

#include "fmt/format.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr int64_t kMaxCounterFileBytes = 4096;
constexpr int64_t kSectorBytes = 512;  // the unit of the file, whatever the device's sectors

}  // namespace

std::optional<DiskAccount> ParseDiskAccount(std::string_view text) {
  std::array<int64_t, 7> fields = {};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (int64_t& field : fields) {
    while (at != end && *at == ' ') ++at;
    const auto [next, error] = std::from_chars(at, end, field);
    if (error != std::errc()) return std::nullopt;
    at = next;
  }
  return DiskAccount{.read_ios = fields[0],
                     .read_merges = fields[1],
                     .read_bytes = fields[2] * kSectorBytes,
                     .write_ios = fields[4],
                     .write_merges = fields[5],
                     .write_bytes = fields[6] * kSectorBytes};
}

std::optional<DiskAccount> DiskAccountOf(dev_t device) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(fmt::format("/sys/dev/block/{}:{}/stat", ::major(device), ::minor(device)),
                    kMaxCounterFileBytes);
  return text.ok() ? ParseDiskAccount(*text) : std::nullopt;
}

double ProcessCpuSeconds() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace forebay
