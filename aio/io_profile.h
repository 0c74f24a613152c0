// What was measured of disks, and the engine settings that suit them: io.json, which `swap-bench
// tune` writes and the trainer and its plan read (docs/formats.md, "io.json").
//
// Not for: measuring (measure/).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/json.h"

namespace forebay {

// What a measurement holds for. Where any of it has changed, the figures may be another disk's.
struct DeviceKey {
  std::string device;       // "259:1": major and minor number of the file system
  std::string file_system;  // "uuid:...", or "fsid:..." where the kernel tells no UUID
  std::string kernel;       // "6.1.0-18-amd64"
  bool operator==(const DeviceKey&) const = default;
};
// The key of the file system that `folder`, or its nearest parent that exists, is on. StorageError.
absl::StatusOr<DeviceKey> AskDeviceKey(const std::string& folder);
// "uuid:..."; "" for one of zeros, which file systems without any have.
std::string FsUuidText(std::span<const uint8_t> uuid);

struct DeviceProfile {
  std::string directory;  // where it was measured; for people
  DeviceKey key;
  EngineKind engine = EngineKind::kIoUring;  // never kAuto
  int64_t block_bytes = 0;
  int64_t inflight_read_bytes = 0;
  int64_t inflight_write_bytes = 0;
  int64_t burst_bytes = 0;
  double read_bytes_per_s = 0;   // of reads alone
  double write_bytes_per_s = 0;  // of writes alone
  double mixed_bytes_per_s = 0;  // of both together, in turns of burst_bytes
  double flush_ms = 0;
  double weight = 1;  // share of a striped load, in proportion to the others'
};

struct IoProfile {
  std::vector<DeviceProfile> devices;
};

inline constexpr int kIoProfileFormat = 1;

// `version`: of the program that writes it.
Json ToJson(const IoProfile& profile, std::string_view version);
// BadInputError naming `source` and the key that is missing, unknown or impossible.
absl::StatusOr<IoProfile> ParseIoProfile(std::string_view text, std::string_view source);
absl::StatusOr<IoProfile> ReadIoProfile(const std::string& path);

// The profile that holds for `key`. nullptr where none does; then `why_not` says what differs.
const DeviceProfile* FindProfile(const IoProfile& profile, const DeviceKey& key,
                                 std::string& why_not);

// `options` with the block, the caps and the burst of a profile.
EngineOptions WithProfile(EngineOptions options, const DeviceProfile& profile);

}  // namespace forebay
