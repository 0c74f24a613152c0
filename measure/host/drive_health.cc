#include "forebay/measure/host/drive_health.h"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr size_t kLogBytes = 512;
// Offsets in the log page.
constexpr size_t kCriticalWarning = 0;
constexpr size_t kSpare = 3;
constexpr size_t kLeastSpare = 4;
constexpr size_t kUsed = 5;
constexpr size_t kDataUnitsWritten = 48;
constexpr size_t kMediaErrors = 160;
// Bits of the critical warning: bit 1 is the temperature, which hwmon tells (drive_heat.h).
constexpr unsigned kTemperatureBit = 1u << 1;
// A data unit is a thousand blocks of 512 bytes.
constexpr int64_t kDataUnitBytes = 512'000;

constexpr uint8_t kGetLogPage = 0x02;
constexpr uint32_t kHealthPage = 0x02;
constexpr uint32_t kAllNamespaces = 0xffffffff;

// The low half of a number of 128 bits, little-endian.
int64_t NumberAt(std::span<const std::byte> log, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, log.data() + offset, sizeof(value));
  return static_cast<int64_t>(
      std::min<uint64_t>(value, std::numeric_limits<int64_t>::max() / kDataUnitBytes));
}

}  // namespace

std::optional<DriveHealth> ParseHealthLog(std::span<const std::byte> log) {
  if (log.size() < kLogBytes) return std::nullopt;
  const auto byte_at = [&log](size_t offset) { return std::to_integer<unsigned>(log[offset]); };
  DriveHealth health;
  health.used_percent = static_cast<int>(byte_at(kUsed));
  health.spare_percent = static_cast<int>(byte_at(kSpare));
  health.least_spare_percent = static_cast<int>(byte_at(kLeastSpare));
  health.reports_trouble = (byte_at(kCriticalWarning) & ~kTemperatureBit) != 0;
  health.written_bytes = NumberAt(log, kDataUnitsWritten) * kDataUnitBytes;
  health.num_media_errors = NumberAt(log, kMediaErrors);
  return health;
}

std::optional<DriveHealth> AskDriveHealth(const std::string& device) {
  const UniqueFd fd(::open(device.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return std::nullopt;
  alignas(8) std::array<std::byte, kLogBytes> log = {};
  struct nvme_admin_cmd command = {};
  command.opcode = kGetLogPage;
  command.nsid = kAllNamespaces;
  command.addr = reinterpret_cast<uint64_t>(log.data());
  command.data_len = kLogBytes;
  constexpr uint32_t kLastDword = kLogBytes / 4 - 1;
  command.cdw10 = kHealthPage | kLastDword << 16;
  if (::ioctl(fd.get(), NVME_IOCTL_ADMIN_CMD, &command) != 0) return std::nullopt;
  return ParseHealthLog(log);
}

}  // namespace forebay
