#include "forebay/aio/io_profile.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;  // of a block, a cap or a burst
constexpr double kMostBytesPerS = 1e13;
constexpr double kMostFlushMs = 1e6;
constexpr double kMostWeight = 1e6;
constexpr size_t kMostDevices = 256;

// FS_IOC_GETFSUUID, since Linux 6.9; older headers lack it.
struct FsUuid {
  uint8_t length = 0;
  std::array<uint8_t, 16> bytes = {};
};
constexpr unsigned long kGetFsUuid = _IOR(0x15, 0, FsUuid);

std::string Hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

absl::StatusOr<std::string> FileSystemId(int fd, const std::string& path) {
  FsUuid uuid;
  if (::ioctl(fd, kGetFsUuid, &uuid) == 0 && uuid.length <= uuid.bytes.size()) {
    const std::string text = FsUuidText(std::span(uuid.bytes).first(uuid.length));
    if (!text.empty()) return text;
  }
  struct statfs info = {};
  if (::fstatfs(fd, &info) != 0)
    return StorageError(fmt::format("statfs of '{}' failed", path), errno);
  std::array<uint8_t, sizeof(info.f_fsid)> fsid = {};
  std::memcpy(fsid.data(), &info.f_fsid, fsid.size());
  return "fsid:" + Hex(fsid);
}

// Reads the keys of one object and keeps the first problem.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) Problem("", "is no object");
  }

  const Json* Find(std::string_view key) {
    known_.emplace_back(key);
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(std::string(key));
    if (found != json_.end()) return &*found;
    Problem(key, "is missing");
    return nullptr;
  }

  std::string Text(std::string_view key) {
    const Json* const value = Find(key);
    if (value == nullptr) return "";
    if (!value->is_string() || value->get_ref<const std::string&>().empty()) {
      Problem(key, "is no text");
      return "";
    }
    return value->get<std::string>();
  }

  // A multiple of `unit`, above 0.
  int64_t Bytes(std::string_view key, int64_t unit) {
    const Json* const value = Find(key);
    if (value == nullptr) return 0;
    const int64_t bytes = IntegerOf(*value).value_or(0);
    if (bytes <= 0 || bytes > kMostBytes || bytes % unit != 0) {
      Problem(key, fmt::format("is {}; allowed: a multiple of {} from {} to {}", Dump(*value), unit,
                               unit, kMostBytes));
      return 0;
    }
    return bytes;
  }

  // Above 0, or from 0.
  double Number(std::string_view key, double most, bool zero_allowed) {
    const Json* const value = Find(key);
    if (value == nullptr) return 0;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (!(number >= 0 && number <= most) || (number == 0 && !zero_allowed)) {
      Problem(key, fmt::format("is {}; allowed: a number {} 0 and at most {}", Dump(*value),
                               zero_allowed ? "from" : "above", most));
      return 0;
    }
    return number;
  }

  void Problem(std::string_view key, std::string_view what) {
    if (!problem_.empty()) return;
    problem_ =
        fmt::format("'{}{}{}' {}", where_, where_.empty() || key.empty() ? "" : ".", key, what);
  }

  // After everything was read: what is there and was not asked for.
  void RefuseOthers() {
    if (!json_.is_object()) return;
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(known_, key) == known_.end()) Problem(key, "is not known");
    }
  }
  const std::string& problem() const { return problem_; }

 private:
  static std::string Dump(const Json& value) {
    constexpr size_t kLongest = 60;
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
  }

  const Json& json_;
  const std::string where_;
  std::vector<std::string> known_;
  std::string problem_;
};

std::optional<EngineKind> EngineOf(std::string_view name) {
  for (const EngineKind kind :
       {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads, EngineKind::kBuffered}) {
    if (NameOf(kind) == name) return kind;
  }
  return std::nullopt;
}

// Returns the problem, "" when there is none.
std::string ReadDevice(const Json& json, const std::string& where, DeviceProfile& device) {
  Fields fields(json, where);
  device.directory = fields.Text("directory");
  device.key = {fields.Text("st_dev"), fields.Text("fs_id"), fields.Text("kernel")};
  const std::string engine = fields.Text("engine");
  const std::optional<EngineKind> kind = EngineOf(engine);
  if (kind.has_value()) {
    device.engine = *kind;
  } else {
    fields.Problem("engine", fmt::format("is '{}'; allowed: io_uring, libaio, threads or buffered",
                                         engine.substr(0, 60)));
  }
  device.block_bytes = fields.Bytes("block", kIoAlignBytes);
  device.inflight_read_bytes = fields.Bytes("inflight_read_bytes", kIoAlignBytes);
  device.inflight_write_bytes = fields.Bytes("inflight_write_bytes", kIoAlignBytes);
  device.burst_bytes = fields.Bytes("burst_bytes", kIoAlignBytes);
  device.read_bytes_per_s = fields.Number("read_bw", kMostBytesPerS, false);
  device.write_bytes_per_s = fields.Number("write_bw", kMostBytesPerS, false);
  device.mixed_bytes_per_s = fields.Number("mixed_bw", kMostBytesPerS, false);
  device.flush_ms = fields.Number("flush_ms", kMostFlushMs, true);
  device.weight = fields.Number("weight", kMostWeight, false);
  if (device.inflight_read_bytes < device.block_bytes) {
    fields.Problem("inflight_read_bytes", "is less than one block");
  }
  if (device.inflight_write_bytes < device.block_bytes) {
    fields.Problem("inflight_write_bytes", "is less than one block");
  }
  fields.RefuseOthers();
  return fields.problem();
}

std::string ReadProfile(const Json& json, IoProfile& profile) {
  Fields fields(json, "");
  const Json* const format = fields.Find("format");
  if (format != nullptr && *format != kIoProfileFormat) {
    fields.Problem("format", fmt::format("is not {}: the file is of another version of forebay",
                                         kIoProfileFormat));
  }
  fields.Text("made_by");
  const Json* const devices = fields.Find("devices");
  if (devices != nullptr &&
      (!devices->is_array() || devices->empty() || devices->size() > kMostDevices)) {
    fields.Problem("devices", fmt::format("is no list of 1 to {} devices", kMostDevices));
  }
  fields.RefuseOthers();
  if (!fields.problem().empty()) return fields.problem();
  for (size_t i = 0; i < devices->size(); ++i) {
    const std::string problem =
        ReadDevice((*devices)[i], fmt::format("devices[{}]", i), profile.devices.emplace_back());
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace

std::string FsUuidText(std::span<const uint8_t> uuid) {
  const bool none = std::ranges::all_of(uuid, [](uint8_t byte) { return byte == 0; });
  return none ? "" : "uuid:" + Hex(uuid);
}

absl::StatusOr<DeviceKey> AskDeviceKey(const std::string& folder) {
  const std::string path = NearestFolder(folder);
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) {
    return StorageError(fmt::format("stat of '{}' failed", path), errno);
  }
  DeviceKey key;
  key.device = fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev));
  FOREBAY_ASSIGN_OR_RETURN(key.file_system, FileSystemId(fd.get(), path));
  struct utsname system = {};
  if (::uname(&system) == 0) key.kernel = system.release;
  return key;
}

Json ToJson(const IoProfile& profile, std::string_view version) {
  Json json;
  json["format"] = kIoProfileFormat;
  json["made_by"] = fmt::format("swap-bench tune {}", version);
  json["devices"] = Json::array();
  for (const DeviceProfile& device : profile.devices) {
    json["devices"].push_back({{"directory", device.directory},
                               {"st_dev", device.key.device},
                               {"fs_id", device.key.file_system},
                               {"kernel", device.key.kernel},
                               {"engine", std::string(NameOf(device.engine))},
                               {"block", device.block_bytes},
                               {"inflight_read_bytes", device.inflight_read_bytes},
                               {"inflight_write_bytes", device.inflight_write_bytes},
                               {"burst_bytes", device.burst_bytes},
                               {"read_bw", device.read_bytes_per_s},
                               {"write_bw", device.write_bytes_per_s},
                               {"mixed_bw", device.mixed_bytes_per_s},
                               {"flush_ms", device.flush_ms},
                               {"weight", device.weight}});
  }
  return json;
}

absl::StatusOr<IoProfile> ParseIoProfile(std::string_view text, std::string_view source) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ParseJson(text, source));
  IoProfile profile;
  const std::string problem = ReadProfile(json, profile);
  if (problem.empty()) return profile;
  return BadInputError(fmt::format(
      "'{}' is no io.json that can be used: {}. Make it again with 'swap-bench tune DIR "
      "--out=io.json'",
      source, problem));
}

absl::StatusOr<IoProfile> ReadIoProfile(const std::string& path) {
  if (!FileExists(path)) {
    return BadInputError(
        fmt::format("'{}' does not exist. 'swap-bench tune DIR --out={}' makes it", path, path));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxConfigFileBytes));
  return ParseIoProfile(text, path);
}

const DeviceProfile* FindProfile(const IoProfile& profile, const DeviceKey& key,
                                 std::string& why_not) {
  why_not = fmt::format("it has no measurement of the device {} ({})", key.device, key.file_system);
  for (const DeviceProfile& device : profile.devices) {
    if (device.key == key) return &device;
    if (device.key.device == key.device && device.key.file_system == key.file_system) {
      why_not = fmt::format("it was measured under kernel {}, and this is {}", device.key.kernel,
                            key.kernel);
    }
  }
  return nullptr;
}

EngineOptions WithProfile(EngineOptions options, const DeviceProfile& profile) {
  options.block_bytes = profile.block_bytes;
  options.max_in_flight_bytes = profile.inflight_read_bytes;
  options.max_writing_bytes = profile.inflight_write_bytes;
  options.burst_bytes = profile.burst_bytes;
  return options;
}

}  // namespace forebay
