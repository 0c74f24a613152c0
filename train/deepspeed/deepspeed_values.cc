#include "forebay/train/deepspeed/deepspeed_values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/train/deepspeed/deepspeed_keys.h"

namespace forebay {
namespace {

constexpr std::string_view kAuto = "auto";
// As pydantic has them, with which DeepSpeed reads most of its sections.
constexpr std::array<std::string_view, 6> kTrue = {"true", "t", "yes", "y", "on", "1"};
constexpr std::array<std::string_view, 6> kFalse = {"false", "f", "no", "n", "off", "0"};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

const Json& Keys() {
  return DeepSpeedTable().at("keys");
}

// That of the key at `path`, which has no other names in it.
const Json& NodeAt(const std::string& path) {
  const Json* keys = &Keys();
  const Json* node = keys;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = path.find('.', begin);
    node = &keys->at(path.substr(begin, end - begin));
    if (node->is_object() && node->contains("keys")) keys = &node->at("keys");
  }
  return *node;
}

bool IsUsed(const Json& node) {
  return node.is_object() && !node.contains("alias");
}

// Errors are what a value has to be.
absl::StatusOr<Json> FlagOf(const Json& value) {
  const std::string text = value.is_string() ? Lower(value.get<std::string>()) : value.dump();
  if (std::ranges::find(kTrue, text) != kTrue.end()) return Json(true);
  if (std::ranges::find(kFalse, text) != kFalse.end()) return Json(false);
  return UsageError("true or false");
}

bool IsOff(const Json& value) {
  if (value.is_object())
    return value.empty() || (value.contains("enabled") && IsOff(value.at("enabled")));
  if (value.is_null() || value == Json::array() || value == "") return true;
  const absl::StatusOr<Json> flag = FlagOf(value);
  return flag.ok() && *flag == false;
}

std::optional<double> NumberIn(const Json& value) {
  double number = 0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  } else if (value.is_number()) {
    number = value.get<double>();
  } else {
    return std::nullopt;
  }
  if (!std::isfinite(number) || number < 0) return std::nullopt;
  return number;
}

absl::StatusOr<Json> WholeOf(const Json& value, int64_t least, int64_t most) {
  const std::optional<double> number = NumberIn(value);
  if (number.has_value() && *number == std::floor(*number) &&
      *number >= static_cast<double>(least) && *number <= static_cast<double>(most)) {
    return Json(static_cast<int64_t>(*number));
  }
  return UsageError(fmt::format("a whole number from {} to {}", least, most));
}

absl::StatusOr<Json> BetasOf(const Json& value) {
  Json betas = Json::array();
  if (value.is_array()) {
    for (const Json& each : value) {
      const std::optional<double> number = NumberIn(each);
      if (number.has_value() && *number < 1) betas.push_back(*number);
    }
  }
  if (betas.size() == 2 && value.size() == 2) return betas;
  return UsageError("two numbers from 0 to below 1");
}

absl::StatusOr<Json> ChoiceOf(const Json& value, const Json& choices) {
  std::vector<std::string> names;
  for (const Json& choice : choices) {
    names.push_back(choice.get<std::string>());
    if (value.is_string() && Lower(value.get<std::string>()) == Lower(names.back())) return choice;
  }
  return UsageError(fmt::format("one of: {}", fmt::join(names, ", ")));
}

bool IsListOfTexts(const Json& value) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const Json& each) { return each.is_string(); });
}

absl::StatusOr<Json> Converted(const Json& node, const Json& value) {
  const std::string kind = node.at("type");
  if (kind == "flag") return FlagOf(value);
  if (kind == "on") {
    const absl::StatusOr<Json> flag = FlagOf(value);
    if (flag.ok() && *flag == true) return flag;
    return UsageError("true: " + node.at("why").get<std::string>());
  }
  if (kind == "number") {
    const std::optional<double> number = NumberIn(value);
    if (number.has_value()) return Json(*number);
    return UsageError("a number from 0 on");
  }
  if (kind == "whole") return WholeOf(value, node.at("least"), node.at("most"));
  if (kind == "betas") return BetasOf(value);
  if (kind == "choice") return ChoiceOf(value, node.at("choices"));
  if (kind == "text" && !value.is_string()) return UsageError("a text");
  if (kind == "names" && !IsListOfTexts(value)) return UsageError("a list of texts");
  if (kind == "object" && !value.is_object()) return UsageError("an object");
  return value;
}

void AddPaths(const Json& keys, const std::string& section, std::set<std::string>& paths) {
  for (const auto& [key, node] : keys.items()) {
    paths.insert(section + key);
    if (node.is_object() && node.contains("keys"))
      AddPaths(node.at("keys"), section + key + ".", paths);
  }
}

std::string CureOf(const std::string& key, const Json& keys, const std::string& section,
                   const std::string& said) {
  std::vector<std::string> all, used;
  for (const auto& [name, node] : keys.items()) {
    all.push_back(name);
    if (IsUsed(node)) used.push_back(name);
  }
  if (section == "optimizer.params." || section == "scheduler.params.")
    return fmt::format("There are: {}.", fmt::join(used, ", "));
  std::string lower = Lower(key);
  std::ranges::replace(lower, '-', '_');
  if (const std::string near = NearestName(lower, all); !near.empty())
    return fmt::format("Is {}{} meant?", said, near);
  std::set<std::string> paths;
  AddPaths(Keys(), "", paths);
  for (const std::string& path : paths) {
    if (path.ends_with("." + key)) return fmt::format("Is {} meant?", path);
  }
  return "Remove it.";
}

}  // namespace

void DeepSpeedValues::Take(const Json& document, const Json& keys, const std::string& section) {
  TakeKeys(document, keys, section, section);
}

void DeepSpeedValues::TakeKeys(const Json& document, const Json& keys, const std::string& section,
                               const std::string& said) {
  for (const auto& [key, value] : document.items()) {
    const auto found = keys.contains(key) ? keys.find(key) : keys.find("*");
    if (found == keys.end()) {
      problems.push_back(
          fmt::format("{}{} is not known. {}", said, key, CureOf(key, keys, section, said)));
    } else {
      Visit(*found, {keys, section, section + key, said + key}, value);
    }
  }
}

void DeepSpeedValues::Visit(const Json& node, const Place& place, const Json& given) {
  if (given.is_null()) return;
  Json value = given;
  if (node.is_object() && node.contains("values"))
    value = node.at("values").value(given.dump(), given);
  if (node.is_string()) {
    if (value != kAuto)
      notes.push_back(fmt::format("{} is ignored: {}", place.said, node.get<std::string>()));
  } else if (node.is_array()) {
    if (!IsOff(value) && std::find(node.begin() + 1, node.end(), value) == node.end()) {
      problems.push_back(
          fmt::format("{} is {}: {}.", place.said, value.dump(), node.at(0).get<std::string>()));
    }
  } else if (node.contains("alias")) {
    const std::string of = node.at("alias");  // a path, or a key of the same section
    const bool is_path = of.find('.') != std::string::npos;
    Visit(is_path ? NodeAt(of) : place.keys.at(of),
          {place.keys, place.section, is_path ? of : place.section + of, place.said}, value);
  } else if (node.contains("keys")) {
    TakeSection(node.at("keys"), place, value);
  } else if (value == kAuto) {
    if (node.value("default", Json()) != kAuto) autos_[place.path] = place.said;
  } else {
    TakeValue(node, place, value);
  }
}

void DeepSpeedValues::TakeSection(const Json& keys, const Place& place, const Json& value) {
  if (value.is_object()) {
    TakeKeys(value, keys, place.path + ".", place.said + ".");
  } else if (value != kAuto) {
    problems.push_back(
        fmt::format("{} is {}, and has to be an object{}.", place.said, value.dump(),
                    keys.contains("enabled") ? R"(, such as {"enabled": true})" : ""));
  }
}

void DeepSpeedValues::TakeValue(const Json& node, const Place& place, const Json& value) {
  const absl::StatusOr<Json> converted = Converted(node, value);
  if (!converted.ok()) {
    problems.push_back(fmt::format("{} is {}, and has to be {}.", place.said, value.dump(),
                                   MessageOf(converted.status())));
    return;
  }
  const auto before = used_.find(place.path);
  if (before != used_.end() && before->second != *converted) {
    problems.push_back(fmt::format(
        "{} and {} are one setting, and have two values. Remove one of them.",
        std::min(said_[place.path], place.said), std::max(said_[place.path], place.said)));
  }
  used_[place.path] = *converted;
  said_[place.path] = place.said;
  if (node.contains("native") && *converted != false) {
    notes.push_back(
        fmt::format("{} is ignored: {}", place.said, node.at("native").get<std::string>()));
  }
}

Json DeepSpeedValues::Get(const std::string& path) const {
  const auto found = used_.find(path);
  return found != used_.end() ? found->second : NodeAt(path).value("default", Json());
}

std::vector<std::string> DeepSpeedValues::Autos() const {
  std::vector<std::string> names;
  for (const auto& [path, said] : autos_) names.push_back(said);
  return names;
}

Json DeepSpeedValues::Under(const std::string& section, const Json& keys) const {
  Json found = Json::object();
  for (const auto& [key, node] : keys.items()) {
    const auto said = used_.find(section + key);
    if (said != used_.end()) {
      found[key] = said->second;
    } else if (node.is_object() && node.contains("default")) {
      found[key] = node.at("default");
    }
  }
  return found;
}

}  // namespace forebay
