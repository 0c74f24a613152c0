#include "forebay/train/options/unknown_options.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

constexpr std::pair<std::string_view, std::string_view> kRemoved[] = {
    {"scrub_every", "'forebay inspect RUN --verify' verifies a run, also while it trains"},
    {"share_gpu", "give each rank a GPU of its own, or use --device=cpu"},
};

std::string InsteadOfFlag(std::string_view name) {
  const OptionSpec* const spec = FindOption(name);
  if (spec == nullptr || spec->form == OptionForm::kFlag) return InsteadOfOption(name);
  return fmt::format("write {}{}", GivenAs(*spec), spec->is_switch() ? "=true" : "=VALUE");
}

const OptionSpec* FindArgument(std::string_view flag, std::string_view name) {
  const OptionSpec* const spec = FindOption(name);
  return spec != nullptr && ArgsFlag(spec->form) == flag ? spec : nullptr;
}

// The end of the first argument of `text`.
size_t EndOfArgument(std::string_view flag, std::string_view text) {
  for (size_t end = text.find(','); end != text.npos; end = text.find(',', end + 1)) {
    const std::string_view next = text.substr(end + 1, text.find(',', end + 1) - end - 1);
    if (next.find('=') != next.npos || FindArgument(flag, next) != nullptr) return end;
  }
  return text.size();
}

}  // namespace

std::string DidYouMean(std::string_view name, const std::vector<std::string>& known,
                       std::string_view prefix) {
  const std::string nearest = NearestName(name, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}{}'?", prefix, nearest);
}

std::string InsteadOfOption(std::string_view name) {
  const std::string key = WithUnderscores(name);
  const auto* const found =
      std::ranges::find(kRemoved, key, [](const auto& row) { return row.first; });
  return found == std::end(kRemoved) ? "" : std::string(found->second);
}

std::string UnknownKey(std::string_view said, std::string_view name) {
  const std::string instead = InsteadOfOption(name);
  if (!instead.empty()) return fmt::format("key '{}' is no more: {}", said, instead);
  std::vector<std::string> known;
  for (const OptionSpec& spec : OptionTable()) known.push_back(spec.name);
  return fmt::format("unknown key '{}'{}", said, DidYouMean(name, known, ""));
}

std::string UnknownFlag(const std::string& flag) {
  const std::string name = WithUnderscores(flag.substr(0, flag.find('=')).substr(2));
  const std::string instead = InsteadOfFlag(name);
  if (!instead.empty()) return fmt::format("flag '{}' is no more: {}", flag, instead);
  std::vector<std::string> known = {"config", "ds_config", "set", "format", "help"};
  for (const OptionSpec& spec : OptionTable()) {
    const std::string_view args = ArgsFlag(spec.form);
    if (spec.form == OptionForm::kFlag) known.push_back(spec.name);
    if (!args.empty()) known.emplace_back(args);
  }
  return fmt::format("unknown flag '{}'{}", flag, DidYouMean(name, known, "--"));
}

std::string ForEachArgument(std::string_view flag, std::string_view text,
                            absl::FunctionRef<void(const OptionSpec&, std::string_view)> set) {
  while (!text.empty()) {
    const size_t end = EndOfArgument(flag, text);
    const std::string_view argument = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const OptionSpec* const spec = FindArgument(flag, name);
    if (spec == nullptr) {
      std::vector<std::string> known;
      for (const OptionSpec& each : OptionTable()) {
        if (ArgsFlag(each.form) == flag) known.push_back(each.name);
      }
      return fmt::format("--{}: there is no argument '{}'{} It has {}", flag, name,
                         NearestName(name, known).empty() ? "." : DidYouMean(name, known, ""),
                         fmt::join(known, ", "));
    }
    if (equals == argument.npos && !spec->is_switch()) {
      return fmt::format("--{}: '{}' has no value: write {}=VALUE", flag, name, name);
    }
    set(*spec, equals == argument.npos ? "true" : argument.substr(equals + 1));
  }
  return "";
}

}  // namespace forebay
