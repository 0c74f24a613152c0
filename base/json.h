// Strict JSON for files that people or other programs write: duplicate keys, deep nesting and bytes
// after the value are errors, integers stay integers. Built on nlohmann::json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace forebay {

// Keys keep their order, so that what we write back reads as it was written.
using Json = nlohmann::ordered_json;

// No configuration file that a person wrote is as long; a longer one is another file by mistake.
inline constexpr int64_t kMaxConfigFileBytes = int64_t{16} << 20;
// A tokenizer.json of a large vocabulary has 20 MB.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

struct JsonParseOptions {
  bool allow_comments = false;  // // and /* */, for configuration files
  int max_depth = 64;
};

// Parses `text`; `source` (a path, perhaps with a line) is named in errors. BadInputError with line
// and column; never throws.
absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view source,
                               const JsonParseOptions& options = {});
absl::StatusOr<Json> ReadJsonFile(const std::string& path, int64_t max_bytes,
                                  const JsonParseOptions& options = {});

// The integer that `value` is; nullopt for other types, fractions, and what int64 does not hold.
// Json's own get<int64_t>() is undefined for a number like 1e30, and wraps one like 2^63.
std::optional<int64_t> IntegerOf(const Json& value);

}  // namespace forebay
