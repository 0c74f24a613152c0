#include "forebay/base/format.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr const char* kBinaryUnits[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
constexpr int kNumBinaryUnits = 6;

// Three significant digits; what would round up to `step` is shown in the next unit.
std::string Scaled(double value, double step, const char* const* units, int num_units) {
  int unit = 0;
  while (unit + 1 < num_units && std::abs(value) >= (unit == 0 ? step : step - 0.5)) {
    value /= step;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  const int decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {" B", " KB", " MB", " GB", " TB", " PB"};
  return Scaled(static_cast<double>(bytes), 1000, kUnits, 6);
}

std::string FormatBinaryBytes(int64_t bytes) {
  return Scaled(static_cast<double>(bytes), 1024, kBinaryUnits, kNumBinaryUnits);
}

std::string FormatBinaryBytesDown(int64_t bytes) {
  int unit = 0;
  double value = static_cast<double>(bytes);
  for (; unit + 1 < kNumBinaryUnits && value >= 1024; ++unit) value /= 1024;
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  const double scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
  return fmt::format("{:.{}f}{}", std::floor(value * scale) / scale, decimals, kBinaryUnits[unit]);
}

std::string SizeText(int64_t bytes) {
  for (const auto& [unit, shift] : {std::pair('G', 30), std::pair('M', 20), std::pair('K', 10)}) {
    if (bytes >= int64_t{1} << shift && bytes % (int64_t{1} << shift) == 0) {
      return fmt::format("{}{}", bytes >> shift, unit);
    }
  }
  return fmt::format("{}", bytes);
}

std::string FormatCount(int64_t count) {
  static constexpr const char* kUnits[] = {"", " K", " M", " G", " T"};
  return Scaled(static_cast<double>(count), 1000, kUnits, 5);
}

std::string FormatDuration(double seconds) {
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

absl::StatusOr<int64_t> ParseSize(std::string_view text) {
  const absl::Status error = UsageError(fmt::format(
      "'{}' is not a size; write bytes or a number with K, M, G or T (powers of 1024), for example "
      "1GiB or 512M",
      text));
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || !(value >= 0)) return error;
  std::string_view suffix(end, text.size() - (end - text.data()));
  double scale = 1;
  if (!suffix.empty() && (suffix.back() == 'B' || suffix.back() == 'b')) suffix.remove_suffix(1);
  if (!suffix.empty()) {
    const std::string_view letters = "KMGT";
    const size_t power =
        letters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0]))));
    if (power == std::string_view::npos) return error;
    suffix.remove_prefix(1);
    if (!suffix.empty() && suffix != "i" && suffix != "I") return error;
    scale = std::ldexp(1.0, 10 * (static_cast<int>(power) + 1));
  }
  if (value * scale > 0x1p62) return error;
  return static_cast<int64_t>(value * scale);
}

absl::StatusOr<double> ParseDuration(std::string_view text) {
  const absl::Status error = UsageError(fmt::format(
      "'{}' is not a time; write a number with ms, s, m or h, for example 30s or 500ms", text));
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || !(value >= 0)) return error;
  const std::string_view unit(end, text.size() - static_cast<size_t>(end - text.data()));
  if (unit.empty() || unit == "s") return value;
  if (unit == "ms") return value / 1000;
  if (unit == "m") return value * 60;
  if (unit == "h") return value * 3600;
  return error;
}

std::string ShellQuoted(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._-+=:,@").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string NearestName(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  if (name.empty()) return best;
  // Never so far that no letter of the name is left in what it is taken for.
  const size_t most = std::min(std::max<size_t>(2, name.size() / 3), name.size() - 1);
  int best_distance = static_cast<int>(most) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace forebay
