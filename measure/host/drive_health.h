// How much of an NVMe drive's life is used, and whether it works, as it tells itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace forebay {

struct DriveHealth {
  int used_percent = 0;          // of the life it is rated for; may exceed 100
  int spare_percent = 100;       // of its spare blocks, left
  int least_spare_percent = 0;   // from which on it calls that too few
  bool reports_trouble = false;  // spare, reliability, read-only or backup power
  int64_t written_bytes = 0;     // by hosts, in its life
  int64_t num_media_errors = 0;  // blocks that it could not give back
  bool operator==(const DriveHealth&) const = default;
};

// Asks the drive (`device`: "/dev/nvme0n1"), which the kernel lets root do, and who may open the
// file for reading where it allows commands without root. nullopt: it does not, or the drive is no
// NVMe one.
std::optional<DriveHealth> AskDriveHealth(const std::string& device);

// The first 512 bytes of the log page "SMART / Health Information" (NVM Express Base
// Specification, log page 02h). nullopt: fewer bytes.
std::optional<DriveHealth> ParseHealthLog(std::span<const std::byte> log);

}  // namespace forebay
