#include "forebay/train/speeds/speed_cache.h"

#include <algorithm>
#include <ctime>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"

namespace forebay {
namespace {

constexpr int kSpeedFormat = 1;
constexpr int64_t kMostBytesOfSpeeds = 64 << 10;
constexpr double kMostSpeed = 1e18;

double UnixSeconds() {
  return static_cast<double>(std::time(nullptr));
}

// The content of a file but for its digest.
Json Contents(const Json& key, const Speeds& speeds, double measured_unix_s) {
  return {{"format", kSpeedFormat},
          {"key", key},
          {"measured_unix_s", measured_unix_s},
          {"speeds", speeds}};
}

std::optional<Speeds> SpeedsOf(const Json& json) {
  if (!json.is_object() || json.empty()) return std::nullopt;
  Speeds speeds;
  for (const auto& [name, value] : json.items()) {
    const double speed = value.is_number() ? value.get<double>() : 0;
    if (!(speed > 0 && speed < kMostSpeed)) return std::nullopt;
    speeds[name] = speed;
  }
  return speeds;
}

}  // namespace

std::string SpeedCache::PathOf(const Json& key) const {
  return JoinPath(folder_, Xxh3_128Hex(key.dump()) + ".json");
}

std::optional<KeptSpeeds> SpeedCache::Find(const Json& key) const {
  const std::string path = PathOf(key);
  if (!FileExists(path)) return std::nullopt;
  absl::StatusOr<Json> read = ReadJsonFile(path, kMostBytesOfSpeeds);
  if (!read.ok() || !read->is_object()) return std::nullopt;
  const Json digest = read->value("digest", Json());
  read->erase("digest");
  if (digest != Xxh3_128Hex(read->dump()) || read->value("format", Json()) != kSpeedFormat ||
      read->value("key", Json()) != key) {
    return std::nullopt;
  }
  const std::optional<Speeds> speeds = SpeedsOf(read->value("speeds", Json()));
  const Json measured = read->value("measured_unix_s", Json());
  if (!speeds.has_value() || !measured.is_number()) return std::nullopt;
  // A clock that was set back does not make them younger than now.
  return KeptSpeeds{*speeds, std::max(0.0, UnixSeconds() - measured.get<double>())};
}

absl::Status SpeedCache::Keep(const Json& key, const Speeds& speeds) const {
  FOREBAY_RETURN_IF_ERROR(MakeDirectories(folder_));
  Json contents = Contents(key, speeds, UnixSeconds());
  contents["digest"] = Xxh3_128Hex(contents.dump());
  return WriteFileAtomically(PathOf(key), contents.dump() + "\n");
}

}  // namespace forebay
