#include "forebay/model/config_fields.h"

#include <limits>

#include "fmt/format.h"
#include "forebay/base/json_fields.h"

namespace forebay {

const Json* ConfigFields::Find(std::string_view key) const {
  const auto found = json_.find(std::string(key));
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::IsNull(std::string_view key) const {
  const auto found = json_.find(std::string(key));
  return found != json_.end() && found->is_null();
}

std::string ConfigFields::Describe(std::string_view key, const Json& value) const {
  constexpr size_t kLongest = 80;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return fmt::format("'{}{}' is {}", path_, key, text);
}

int64_t ConfigFields::Int(std::string_view key, IntRange range,
                          std::optional<int64_t> fallback) const {
  const Json* const value = Find(key);
  if (value == nullptr) {
    if (!fallback.has_value()) Problem(fmt::format("'{}{}' is missing", path_, key));
    return fallback.value_or(range.least);
  }
  const std::optional<int64_t> integer = WholeNumberOf(*value);
  if (!integer.has_value() && !value->is_number_integer()) {
    Problem(fmt::format("{}, but a whole number is expected", Describe(key, *value)));
    return fallback.value_or(range.least);
  }
  if (!integer.has_value() || *integer < range.least || *integer > range.most) {
    Problem(fmt::format("{}, but {} to {} is supported", Describe(key, *value), range.least,
                        range.most));
    return fallback.value_or(range.least);
  }
  return *integer;
}

double ConfigFields::Number(std::string_view key, NumberRange range,
                            std::optional<double> fallback) const {
  const Json* const value = Find(key);
  if (value == nullptr) {
    if (!fallback.has_value()) Problem(fmt::format("'{}{}' is missing", path_, key));
    return fallback.value_or(range.most);
  }
  if (!value->is_number()) {
    Problem(fmt::format("{}, but a number is expected", Describe(key, *value)));
    return fallback.value_or(range.most);
  }
  const double number = value->get<double>();
  const bool enough = range.includes_least ? number >= range.least : number > range.least;
  if (!enough || !(number <= range.most)) {
    Problem(fmt::format("{}, but a number {} {} and at most {} is supported", Describe(key, *value),
                        range.includes_least ? "at least" : "above", range.least, range.most));
    return fallback.value_or(range.most);
  }
  return number;
}

bool ConfigFields::Bool(std::string_view key, bool fallback) const {
  const Json* const value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Problem(fmt::format("{}, but true or false is expected", Describe(key, *value)));
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigFields::String(std::string_view key, std::string_view fallback) const {
  const Json* const value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    Problem(fmt::format("{}, but a string is expected", Describe(key, *value)));
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::vector<double> ConfigFields::Numbers(std::string_view key, NumberRange range,
                                          size_t count) const {
  const Json* const value = Find(key);
  if (value == nullptr) {
    Problem(fmt::format("'{}{}' is missing", path_, key));
    return {};
  }
  if (!value->is_array() || value->size() != count) {
    const std::string found = value->is_array()
                                  ? fmt::format("'{}{}' has {}", path_, key, value->size())
                                  : Describe(key, *value);
    Problem(fmt::format("{}, but a list of {} numbers is expected", found, count));
    return {};
  }
  std::vector<double> numbers;
  const size_t before = problems_->size();
  for (size_t i = 0; i < count; ++i) {
    const Json entry = {{fmt::format("{}[{}]", key, i), (*value)[i]}};
    numbers.push_back(
        ConfigFields(entry, path_, problems_).Number(entry.begin().key(), range, std::nullopt));
    if (problems_->size() > before) return {};
  }
  return numbers;
}

std::vector<int64_t> ReadTokenIds(const ConfigFields& fields, std::string_view key) {
  constexpr int64_t kNone = -1;
  const Json* const value = fields.Find(key);
  if (value == nullptr || WholeNumberOf(*value) == kNone) return {};
  if (!value->is_array()) return {fields.Int(key, kTokenRange, std::nullopt)};
  std::vector<int64_t> tokens;
  for (const Json& token : *value) {
    const std::optional<int64_t> id = WholeNumberOf(token);
    if (id == kNone) continue;
    if (!id.has_value() || *id < kTokenRange.least || *id > kTokenRange.most) {
      fields.Problem(
          fmt::format("{}, but token numbers are expected", fields.Describe(key, *value)));
      return {};
    }
    tokens.push_back(*id);
  }
  return tokens;
}

}  // namespace forebay
