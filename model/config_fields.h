// Typed access to the keys of a config.json that collects every problem instead of stopping at the
// first, so that one run of a program tells the user all that is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "forebay/base/json.h"

namespace forebay {

// Both ends included.
struct IntRange {
  int64_t least = 0;
  int64_t most = 0;
};
struct NumberRange {
  double least = 0;
  double most = 0;
  bool includes_least = false;
};

inline constexpr IntRange kPositionsRange = {1, int64_t{1} << 30};
// Numbers that tokens can have: those of the largest supported vocabulary.
inline constexpr IntRange kTokenRange = {0, (int64_t{1} << 24) - 1};

// Getters take null as missing, report what is wrong and then return the fallback, so that checking
// goes on. Thread-compatible. `json` is borrowed.
class ConfigFields {
 public:
  // `json`: an object. `path`: put before keys in messages ("rope_scaling."), empty for the top
  // level.
  ConfigFields(const Json& json, std::string path, std::vector<std::string>* problems)
      : json_(json), path_(std::move(path)), problems_(problems) {}

  // nullptr when the key is missing or null.
  const Json* Find(std::string_view key) const;
  bool IsNull(std::string_view key) const;  // there, with the value null

  // Without a fallback the key is required. A whole number may be written as 32768.0.
  int64_t Int(std::string_view key, IntRange range, std::optional<int64_t> fallback) const;
  double Number(std::string_view key, NumberRange range, std::optional<double> fallback) const;
  bool Bool(std::string_view key, bool fallback) const;
  std::string String(std::string_view key, std::string_view fallback) const;
  // As many numbers; none where there is a problem. The key is required.
  std::vector<double> Numbers(std::string_view key, NumberRange range, size_t count) const;

  void Problem(std::string text) const { problems_->push_back(std::move(text)); }
  // "'rope_scaling.factor' is -1", with the value cut when it is long.
  std::string Describe(std::string_view key, const Json& value) const;

 private:
  const Json& json_;
  std::string path_;
  std::vector<std::string>* problems_;
};

// One token number or a list of them (`eos_token_id`), without -1, which says that there is none;
// empty when the key is missing or null.
std::vector<int64_t> ReadTokenIds(const ConfigFields& fields, std::string_view key);

}  // namespace forebay
