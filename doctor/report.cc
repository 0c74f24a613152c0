#include "forebay/doctor/report.h"

#include <algorithm>
#include <string_view>

#include "fmt/format.h"

namespace forebay {
namespace {

constexpr int kSchema = 1;

std::string HeadingOf(const Check& check) {
  return check.of.empty() ? check.group : fmt::format("{} {}", check.group, check.of);
}

int64_t CountOf(std::span<const Check> checks, Verdict verdict) {
  return std::ranges::count(checks, verdict, &Check::verdict);
}

Json OrNull(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

}  // namespace

std::string_view NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "";
}

Verdict WorstOf(std::span<const Check> checks) {
  Verdict worst = Verdict::kOk;
  for (const Check& check : checks) worst = std::max(worst, check.verdict);
  return worst;
}

std::string FormatChecks(std::span<const Check> checks) {
  std::string text, heading;
  for (const Check& check : checks) {
    if (HeadingOf(check) != heading) {
      heading = HeadingOf(check);
      text += heading + "\n";
    }
    text += fmt::format("  {:<5}{:<14} {}\n", NameOf(check.verdict), check.id, check.value);
    if (!check.fix.empty()) text += fmt::format("       fix: {}\n", check.fix);
  }
  return text + fmt::format("{} ok, {} warn, {} fail\n", CountOf(checks, Verdict::kOk),
                            CountOf(checks, Verdict::kWarn), CountOf(checks, Verdict::kFail));
}

Json ChecksToJson(std::span<const Check> checks, const std::string& version) {
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"group", check.group},
                    {"of", OrNull(check.of)},
                    {"id", check.id},
                    {"verdict", NameOf(check.verdict)},
                    {"value", check.value},
                    {"fix", OrNull(check.fix)}});
  }
  return {{"schema", kSchema},
          {"tool", {{"name", "forebay"}, {"version", version}}},
          {"verdict", NameOf(WorstOf(checks))},
          {"checks", std::move(list)}};
}

}  // namespace forebay
