#include "forebay/base/json.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {

absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view source,
                               const JsonParseOptions& options) {
  // The callback sees every key and object, so duplicates and depth are caught while parsing.
  std::vector<std::unordered_set<std::string>> keys_seen;
  std::string problem;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > options.max_depth && problem.empty()) {
      problem = fmt::format("nested deeper than {} levels", options.max_depth);
    }
    if (event == Json::parse_event_t::object_start) keys_seen.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys_seen.empty()) keys_seen.pop_back();
    if (event == Json::parse_event_t::key && !keys_seen.empty() && problem.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_seen.back().insert(key).second)
        problem = fmt::format("the key '{}' appears twice", key);
    }
    return true;
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), callback, true, options.allow_comments);
    if (!problem.empty()) return BadInputError(fmt::format("{}: {}", source, problem));
    return value;
  } catch (const Json::parse_error& error) {
    const size_t at = std::min<size_t>(error.byte > 0 ? error.byte - 1 : 0, text.size());
    const std::string_view before = text.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t newline = before.rfind('\n');
    const size_t column = 1 + (newline == std::string_view::npos ? at : at - newline - 1);
    return BadInputError(
        fmt::format("{}: not valid JSON at line {}, column {}", source, line, column));
  } catch (const Json::exception& error) {
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    const std::string_view what = error.what();
    return BadInputError(
        fmt::format("{}: not valid JSON ({})", source, what.substr(what.find(']') + 2)));
  }
}

absl::StatusOr<Json> ReadJsonFile(const std::string& path, int64_t max_bytes,
                                  const JsonParseOptions& options) {
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, max_bytes));
  return ParseJson(text, path, options);
}

std::optional<int64_t> IntegerOf(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

}  // namespace forebay
