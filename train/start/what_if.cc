#include "forebay/train/start/what_if.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/offload/largest_term.h"

namespace forebay {
namespace {

constexpr int64_t kMostBatch = 65536;  // of --batch and --accum

// Whether a NAME= begins `text`.
bool IsSetting(std::string_view text) {
  const size_t name = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_-.");
  return name != std::string_view::npos && name > 0 && text[name] == '=';
}

// `text` cut at each `separator` that a setting follows.
std::vector<std::string> CutBeforeSettings(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != separator || !IsSetting(text.substr(i + 1))) continue;
    parts.emplace_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

absl::StatusOr<ResolvedOptions> ResolveWith(const OptionInputs& inputs,
                                            const std::string& settings) {
  OptionInputs changed = inputs;
  for (std::string& setting : CutBeforeSettings(settings, '+')) {
    std::replace(setting.begin(), setting.begin() + static_cast<ptrdiff_t>(setting.find('=')), '-',
                 '_');
    changed.sets.push_back(std::move(setting));
  }
  return ResolveOptions(changed, OptionsUse::kPlan);
}

// The run as it is, and its options.
absl::StatusOr<std::pair<Alternative, TrainOptions>> PlanAsGiven(const OptionInputs& inputs,
                                                                 const PlanFunction& plan) {
  FOREBAY_ASSIGN_OR_RETURN(ResolvedOptions resolved, ResolveOptions(inputs, OptionsUse::kPlan));
  Alternative as_given{"", plan(resolved.options)};
  if (!as_given.plan.ok() && ExitCodeOf(as_given.plan.status()) != ExitCode::kDoesNotFit) {
    return as_given.plan.status();
  }
  return std::pair(std::move(as_given), std::move(resolved.options));
}

absl::StatusOr<Alternative> PlanWith(const OptionInputs& inputs, const std::string& settings,
                                     const PlanFunction& plan) {
  const auto named = [&](const absl::Status& status) {
    return Annotate(status, fmt::format("--what_if={}", settings));
  };
  const absl::StatusOr<ResolvedOptions> resolved = ResolveWith(inputs, settings);
  if (!resolved.ok()) return named(resolved.status());
  Alternative alternative{settings, plan(resolved->options)};
  const absl::Status& status = alternative.plan.status();
  if (status.ok() || ExitCodeOf(status) == ExitCode::kDoesNotFit) return alternative;
  return named(status);
}

// `as_given`: its plan, nullptr where it does not fit.
std::vector<std::string> UsualAlternatives(const TrainOptions& options, const Plan* as_given) {
  std::vector<std::string> usual;
  const int64_t ram_mib = (as_given ? as_given->ram_budget_bytes : options.ram_bytes) >> 20;
  if (ram_mib >= 2) usual.push_back(fmt::format("ram={}MiB", ram_mib / 2));
  if (ram_mib > 0) usual.push_back(fmt::format("ram={}MiB", ram_mib * 2));
  if (options.accum <= kMostBatch / 2) usual.push_back(fmt::format("accum={}", options.accum * 2));
  if (options.batch <= kMostBatch / 2) usual.push_back(fmt::format("batch={}", options.batch * 2));
  for (const Layout layout : {Layout::kBf16, Layout::kBf16Moments, Layout::kInt8Moments}) {
    if (layout != options.layout && options.precision == cpu::Precision::kBf16) {
      usual.push_back(fmt::format("layout={}", NameOf(layout)));
    }
  }
  const bool spills = as_given != nullptr ? as_given->activations.num_spilled > 0
                                          : options.activations_tier == ActivationsTier::kNvme;
  usual.emplace_back(spills ? "activations_tier=ram" : "activations_tier=nvme");
  if (as_given == nullptr || !as_given->on_gpu()) {
    const bool is_bf16 = options.activations_dtype == DType::kBF16;
    usual.emplace_back(is_bf16 ? "activations_dtype=fp32" : "activations_dtype=bf16");
  }
  usual.emplace_back("gradients=speculate");
  const bool is_single = as_given != nullptr && as_given->num_slots == 1;
  usual.emplace_back(is_single ? "durability=step" : "durability=none");
  return usual;
}

double TbPer1000Steps(const Plan& plan) {
  return static_cast<double>(plan.write_bytes_per_step) * 1000 / 1e12;
}

// The first sentence of a message, before it begins to advise.
std::string FirstSentence(const std::string& message) {
  const std::string line = message.substr(0, message.find('\n'));
  return line.substr(0, line.find(". "));
}

std::string WhyNot(const absl::Status& status) {
  const std::string largest = LargestTermOf(status);
  return FirstSentence(MessageOf(status)) + (largest.empty() ? "" : "; most of it: " + largest);
}

std::string AlternativeRow(const Alternative& alternative, size_t width) {
  const std::string name = alternative.settings.empty() ? "as given" : alternative.settings;
  if (!alternative.plan.ok()) {
    return fmt::format("{:<{}}  does not fit: {}\n", name, width,
                       WhyNot(alternative.plan.status()));
  }
  const Plan& plan = *alternative.plan;
  const auto& forecast = plan.forecast;
  return fmt::format("{:<{}}{:>9}{:>10}  {:<8}{:>10}{:>9}{:>9}{:>9}{:>12.3g}\n", name, width,
                     forecast ? FormatDuration(forecast->step_s) : "-",
                     forecast ? fmt::format("{:.0f}", forecast->tokens_per_s) : "-",
                     forecast ? NameOf(forecast->bound) : "-", FormatBinaryBytes(plan.host_bytes),
                     FormatBinaryBytes(plan.nvme_bytes), FormatBytes(plan.read_bytes_per_step),
                     FormatBytes(plan.write_bytes_per_step), TbPer1000Steps(plan));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitAlternatives(const std::vector<std::string>& texts) {
  std::vector<std::string> alternatives;
  for (const std::string& text : texts) {
    for (std::string& each : CutBeforeSettings(text, ',')) {
      if (!IsSetting(each)) {
        return UsageError(fmt::format(
            "--what_if={}: '{}' is no NAME=VALUE. Give settings such as ram=8GiB,layout=int8-"
            "moments+batch=8, or none for a usual choice of them",
            text, each));
      }
      alternatives.push_back(std::move(each));
    }
  }
  return alternatives;
}

absl::StatusOr<std::vector<Alternative>> PlanAlternatives(
    const OptionInputs& inputs, const std::vector<std::string>& alternatives,
    const PlanFunction& plan) {
  std::vector<Alternative> rows;
  FOREBAY_ASSIGN_OR_RETURN(auto as_given, PlanAsGiven(inputs, plan));
  rows.push_back(std::move(as_given.first));
  for (const std::string& settings : alternatives) {
    FOREBAY_ASSIGN_OR_RETURN(Alternative row, PlanWith(inputs, settings, plan));
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::StatusOr<std::vector<Alternative>> PlanUsualAlternatives(const OptionInputs& inputs,
                                                               const PlanFunction& plan) {
  std::vector<Alternative> rows;
  FOREBAY_ASSIGN_OR_RETURN(auto as_given, PlanAsGiven(inputs, plan));
  const Plan* const fits = as_given.first.plan.ok() ? &*as_given.first.plan : nullptr;
  const std::vector<std::string> usual = UsualAlternatives(as_given.second, fits);
  rows.push_back(std::move(as_given.first));
  for (const std::string& settings : usual) {
    absl::StatusOr<Alternative> row = PlanWith(inputs, settings, plan);
    if (row.ok()) {
      rows.push_back(*std::move(row));
    } else if (ExitCodeOf(row.status()) != ExitCode::kUsage) {
      return row.status();
    }
  }
  return rows;
}

Json ToJson(const std::vector<Alternative>& alternatives) {
  Json rows = Json::array();
  for (const auto& [settings, plan] : alternatives) {
    Json& row = rows.emplace_back();
    row = {{"settings", settings}, {"fits", plan.ok()}};
    if (!plan.ok()) {
      row["why_not"] = FirstSentence(MessageOf(plan.status()));
      row["largest_term"] = LargestTermOf(plan.status());
      continue;
    }
    row["step_s"] = plan->forecast ? Json(plan->forecast->step_s) : Json();
    row["tokens_per_s"] = plan->forecast ? Json(plan->forecast->tokens_per_s) : Json();
    row["bound"] = plan->forecast ? Json(NameOf(plan->forecast->bound)) : Json();
    row["ram_budget_bytes"] = plan->ram_budget_bytes;
    row["host_bytes"] = plan->host_bytes;
    row["nvme_bytes"] = plan->nvme_bytes;
    row["read_bytes_per_step"] = plan->read_bytes_per_step;
    row["write_bytes_per_step"] = plan->write_bytes_per_step;
    row["tb_written_per_1000_steps"] = TbPer1000Steps(*plan);
  }
  return rows;
}

std::string FormatAlternatives(const std::vector<Alternative>& alternatives) {
  size_t width = std::string_view("as given").size();
  for (const Alternative& alternative : alternatives) {
    width = std::max(width, alternative.settings.size());
  }
  std::string table =
      fmt::format("{:<{}}{:>9}{:>10}  {:<8}{:>10}{:>9}{:>9}{:>9}{:>12}\n", "what if", width, "step",
                  "tokens/s", "bound", "RAM", "NVMe", "read", "written", "TB/1000");
  for (const Alternative& alternative : alternatives) table += AlternativeRow(alternative, width);
  return table;
}

}  // namespace forebay
