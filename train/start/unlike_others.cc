#include "forebay/train/start/unlike_others.h"

#include <array>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

// Defaults of TrainingArguments (transformers 5) that are others here.
constexpr std::array<std::pair<const char*, const char*>, 4> kDefaultsOfTrainer = {
    {{"batch", "8"}, {"epochs", "3"}, {"lr", "5e-05"}, {"weight_decay", "0"}}};
// Keys of GPT-2, whose rates are 0.1 if config.json does not say them.
constexpr std::array kRatesOfGpt2 = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};

bool IsDropoutRate(const std::string& key) {
  // Those of a classifier, which is not trained here.
  if (key.starts_with("classifier") || key.starts_with("summary")) return false;
  return key.find("dropout") != std::string::npos || key.find("pdrop") != std::string::npos ||
         key.find("layerdrop") != std::string::npos;
}

// "attention_dropout 0.1" of every rate that transformers would use.
std::vector<std::string> DropoutRates(Json config) {
  if (config.value("model_type", Json()) == "gpt2") {
    for (const char* key : kRatesOfGpt2) config.emplace(key, 0.1);
  }
  std::vector<std::string> rates;
  for (const auto& [key, value] : config.items()) {
    if (!IsDropoutRate(key) || !value.is_number() || value.get<double>() <= 0) continue;
    rates.push_back(fmt::format("{} {}", key, value.dump()));
  }
  return rates;
}

}  // namespace

absl::StatusOr<std::string> UnlikeOtherTrainers(const std::string& model,
                                                const ResolvedOptions& resolved) {
  FOREBAY_ASSIGN_OR_RETURN(const Json config,
                           ReadJsonFile(JoinPath(model, kConfigName), kMaxConfigFileBytes));
  std::string line =
      "unlike transformers' Trainer: short samples share rows and do not see each "
      "other";
  if (const auto rates = DropoutRates(config); !rates.empty()) {
    line += fmt::format("; no dropout, whatever config.json says ({})", fmt::join(rates, ", "));
  }
  std::vector<std::string> defaults;
  for (const auto& [name, theirs] : kDefaultsOfTrainer) {
    const Json& entry = resolved.resolved[FindOption(name)->section][name];
    const bool is_default = entry.is_object() && entry.value("origin", Json()) == "default";
    const bool counts = std::string_view(name) != "epochs" || resolved.options.steps == 0;
    if (!is_default || !counts) continue;
    defaults.push_back(fmt::format("{}={} (there {})", GivenAs(*FindOption(name)),
                                   OptionText(resolved.options, name), theirs));
  }
  if (!defaults.empty()) line += fmt::format("; {}", fmt::join(defaults, ", "));
  return line;
}

}  // namespace forebay
