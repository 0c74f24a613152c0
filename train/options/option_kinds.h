// What kinds of options there are: how each is spelled, checked and stored. A row of the table
// (option_table.cc) is one of them.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/train/options/option_table.h"

namespace forebay::option_kinds {

// More than anybody counts to, and safe to multiply by.
inline constexpr int64_t kManySteps = int64_t{1} << 40;

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

template <typename T>
std::optional<Json> ParseNumber(std::string_view text) {
  const std::optional<T> value = ParseWhole<T>(text);
  if (!value.has_value()) return std::nullopt;
  return Json(*value);
}

std::optional<Json> ParseAsText(std::string_view text);
// Without a spelling of its values.
OptionSpec Row(std::string_view section, std::string_view name, std::string_view help);

// `member`: any integer type of TrainOptions.
template <typename T>
OptionSpec Whole(std::string_view section, std::string_view name, T TrainOptions::*member, T least,
                 T most, std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "N";
  spec.allowed = std::cmp_greater_equal(most, kManySteps)
                     ? fmt::format("a whole number, {} or more", least)
                     : fmt::format("a whole number from {} to {}", least, most);
  // Negative numbers must reach the range check instead of failing as text.
  spec.parse = std::is_unsigned_v<T> ? ParseNumber<uint64_t> : ParseNumber<int64_t>;
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_number_integer()) return false;
    if constexpr (std::is_unsigned_v<T>) {
      if (!value.is_number_unsigned() && value.get<int64_t>() < 0) return false;
      options.*member = value.get<T>();
      return true;
    }
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) return false;
    const int64_t number = value.get<int64_t>();
    if (number < static_cast<int64_t>(least) || number > static_cast<int64_t>(most)) return false;
    options.*member = static_cast<T>(number);
    return true;
  };
  spec.get = [=](const TrainOptions& options) { return Json(options.*member); };
  return spec;
}

struct RealRange {
  double least = 0;
  double most = 0;
  bool above_least = false;  // least itself is not allowed
  bool below_most = false;   // most itself is not allowed
  bool Contains(double value) const {
    return std::isfinite(value) && (above_least ? value > least : value >= least) &&
           (below_most ? value < most : value <= most);
  }
  std::string Text() const {
    return fmt::format("{} {} {} {}", above_least ? "above" : "from", least,
                       below_most ? "to below" : "to", most);
  }
};

OptionSpec Real(std::string_view section, std::string_view name, double TrainOptions::*member,
                RealRange range, std::string_view help);
OptionSpec Switch(std::string_view section, std::string_view name, bool TrainOptions::*member,
                  std::string_view help);
OptionSpec Path(std::string_view section, std::string_view name, std::string TrainOptions::*member,
                std::string_view help);

// Data as forebay-data's --data names it, with commas between several; of a list in a configuration
// file each item is one.
OptionSpec Data(std::string_view section, std::string_view name, std::string TrainOptions::*member,
                std::string_view help);

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

// By their names.
template <typename T>
Choices<T> ChoicesOf(std::initializer_list<T> values) {
  Choices<T> choices;
  for (const T value : values) choices.emplace_back(NameOf(value), value);
  return choices;
}

template <typename T>
OptionSpec Choice(std::string_view section, std::string_view name, T TrainOptions::*member,
                  Choices<T> choices, std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  for (const auto& [text, value] : choices) {
    spec.value_name += (spec.value_name.empty() ? "" : "|") + text;
    spec.allowed += (spec.allowed.empty() ? "" : " or ") + text;
  }
  spec.parse = ParseAsText;
  spec.set = [=](const Json& value, TrainOptions& options) {
    for (const auto& [text, choice] : choices) {
      if (value != text) continue;
      options.*member = choice;
      return true;
    }
    return false;
  };
  spec.get = [=](const TrainOptions& options) {
    const auto found = std::ranges::find_if(
        choices, [&](const auto& choice) { return choice.second == options.*member; });
    FOREBAY_CHECK(found != choices.end());
    return Json(found->first);
  };
  return spec;
}

// ---- Of one option each, or two

OptionSpec Betas(std::string_view section, std::string_view help);
// Folders of the swap area. Commas part them, also in a text of a configuration file; of a list
// there each item is one folder, whatever is in its name.
OptionSpec Folders(std::string_view section, std::string_view name,
                   std::vector<std::string> TrainOptions::*member, std::string_view help);
OptionSpec Weights(std::string_view section, std::string_view name,
                   std::vector<double> TrainOptions::*member, std::string_view help);
// "power=2,end_lr=1e-6", or an object in a configuration file. Which arguments there are is the
// schedule's to say (lr_schedule_table.h).
OptionSpec ScheduleArgs(std::string_view section, std::string_view help);
OptionSpec ParamGroups(std::string_view section, std::string_view help);
// "auto" is 0.
OptionSpec Memory(std::string_view section, std::string_view name, int64_t TrainOptions::*member,
                  std::string_view help);
// "4-6", or one step as "4"; "" is none.
OptionSpec Steps(std::string_view section, std::string_view name, StepRange TrainOptions::*member,
                 std::string_view help);
OptionSpec TileElems(std::string_view section, std::string_view help);

}  // namespace forebay::option_kinds
