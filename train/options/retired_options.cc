#include "forebay/train/options/retired_options.h"

#include <algorithm>
#include <string>
#include <utility>

#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

constexpr std::pair<std::string_view, std::string_view> kRetired[] = {
    {"scrub_every", "'forebay inspect RUN --verify' verifies a run, also while it trains"},
    {"share_gpu", "give each rank a GPU of its own, or use --device=cpu"},
};

}  // namespace

std::string_view InsteadOfOption(std::string_view name) {
  const std::string key = WithUnderscores(name);
  const auto* const found = std::ranges::find(kRetired, key, [](const auto& row) { return row.first; });
  return found == std::end(kRetired) ? std::string_view() : found->second;
}

}  // namespace forebay
