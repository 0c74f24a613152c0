// Measured speeds, kept in a folder of the user's cache: one small file for each thing that was
// measured, named after what the speed holds for (docs/formats.md, "Kept speeds").
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "forebay/base/json.h"

namespace forebay {

// By name, each above 0.
using Speeds = std::map<std::string, double>;

struct KeptSpeeds {
  Speeds speeds;
  double age_s = 0;  // since they were measured
};

// Thread-compatible; files are replaced as wholes, so processes may share the folder.
class SpeedCache {
 public:
  // `folder`: made when something is kept.
  explicit SpeedCache(std::string folder) : folder_(std::move(folder)) {}

  // `key`: all that the speeds depend on. nullopt: there are none for it, or the file is damaged.
  std::optional<KeptSpeeds> Find(const Json& key) const;
  // Measured just now. StorageError.
  absl::Status Keep(const Json& key, const Speeds& speeds) const;
  std::string PathOf(const Json& key) const;

 private:
  std::string folder_;
};

}  // namespace forebay
