#include "forebay/optimizer/intent_words.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr std::string_view kLeftAlone = "left_alone";
constexpr std::string_view kTrainer = "trainer";
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr size_t kTensorsOfDigit = 4;

// Four tensors a digit, the first one in its lowest bit.
std::string HexOf(std::span<const uint8_t> flags) {
  std::string hex;
  for (size_t first = 0; first < flags.size(); first += kTensorsOfDigit) {
    size_t digit = 0;
    for (size_t i = first; i < std::min(first + kTensorsOfDigit, flags.size()); ++i) {
      if (flags[i] != 0) digit |= size_t{1} << (i - first);
    }
    hex += kHexDigits[digit];
  }
  return hex;
}

bool IsWrapped(const Json& json) {
  return json.is_object() && json.contains(kLeftAlone);
}

}  // namespace

Json EncodeIntentWords(const Json& trainer, std::span<const uint8_t> left_alone) {
  const bool any = std::ranges::any_of(left_alone, [](uint8_t flag) { return flag != 0; });
  // A trainer whose own words could be taken for ours has them wrapped as well.
  if (!any && !IsWrapped(trainer)) return trainer;
  return {{kLeftAlone, HexOf(left_alone)}, {kTrainer, trainer}};
}

absl::StatusOr<IntentWords> DecodeIntentWords(const Json& json, size_t num_tensors) {
  IntentWords words;
  words.left_alone.resize(num_tensors);
  if (!IsWrapped(json)) {
    words.trainer = json;
    return words;
  }
  const absl::Status damage = CorruptError(
      "the intent of a step leaves tensors alone that this model does not have, or names them in "
      "another way than this forebay does. Its gradients are not used");
  if (!json.contains(kTrainer) || !json[kLeftAlone].is_string()) return damage;
  const auto& hex = json[kLeftAlone].get_ref<const std::string&>();
  if (hex.size() != (num_tensors + kTensorsOfDigit - 1) / kTensorsOfDigit) return damage;
  for (size_t at = 0; at < hex.size(); ++at) {
    const size_t digit = kHexDigits.find(hex[at]);
    if (digit == std::string_view::npos) return damage;
    for (size_t bit = 0; bit < kTensorsOfDigit; ++bit) {
      if ((digit >> bit & 1) == 0) continue;
      const size_t tensor = at * kTensorsOfDigit + bit;
      if (tensor >= num_tensors) return damage;
      words.left_alone[tensor] = 1;
    }
  }
  words.trainer = json[kTrainer];
  return words;
}

}  // namespace forebay
