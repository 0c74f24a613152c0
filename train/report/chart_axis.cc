#include "forebay/train/report/chart_axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "fmt/format.h"
#include "forebay/base/markup.h"

namespace forebay {
namespace {

struct Unit {
  double least;  // the axis has to reach this
  double size;
  const char* name;
};
constexpr std::array<Unit, 6> kByteUnits = {{{1e15, 1e15, "PB"},
                                             {1e12, 1e12, "TB"},
                                             {1e9, 1e9, "GB"},
                                             {1e6, 1e6, "MB"},
                                             {1e3, 1e3, "KB"},
                                             {0, 1, "B"}}};
constexpr std::array<Unit, 3> kSecondUnits = {{{1, 1, "s"}, {1e-3, 1e-3, "ms"}, {0, 1e-6, "us"}}};
constexpr std::array<Unit, 3> kNumberUnits = {
    {{1e6, 1e6, "million"}, {1e4, 1e3, "thousand"}, {0, 1, ""}}};

std::span<const Unit> UnitsOf(Quantity quantity) {
  if (quantity == Quantity::kBytes) return kByteUnits;
  if (quantity == Quantity::kSeconds) return kSecondUnits;
  return kNumberUnits;
}

}  // namespace

bool IsDrawn(double value) {
  return std::isfinite(value) && std::abs(value) <= kMostDrawn;
}

ChartAxis::ChartAxis(Quantity quantity, double least, double most) {
  // One value needs room around it; and so do values that differ in their last digits alone.
  const double least_span = std::max(std::max(std::abs(least), std::abs(most)) * 1e-6, 1e-12);
  if (most - least < least_span) {
    const double room = most == 0 ? 1 : std::abs(most) * 0.1;
    if (least != 0) least -= room;
    most += room;
  }
  tick_ = RoundStep(most - least);
  begin_ = std::floor(least / tick_ + 1e-9) * tick_;
  end_ = std::ceil(most / tick_ - 1e-9) * tick_;
  SetUnit(quantity);
}

ChartAxis ChartAxis::OfSteps(double first, double last) {
  ChartAxis axis;
  axis.begin_ = first;
  axis.end_ = std::max(last, first + 1);
  axis.tick_ = std::max(RoundStep(axis.end_ - axis.begin_), 1.0);
  return axis;
}

void ChartAxis::SetUnit(Quantity quantity) {
  const double size = std::max(std::abs(begin_), std::abs(end_));
  const std::span<const Unit> units = UnitsOf(quantity);
  const Unit& unit =
      *std::ranges::find_if(units, [&](const Unit& candidate) { return size >= candidate.least; });
  unit_ = unit.name;
  unit_size_ = unit.size;
}

std::vector<double> ChartAxis::Ticks() const {
  std::vector<double> ticks;
  const double first = std::ceil(begin_ / tick_ - 1e-9);
  const double last = std::floor(end_ / tick_ + 1e-9);
  for (double i = first; i <= last; ++i) ticks.push_back(i * tick_);
  return ticks;
}

std::string ChartAxis::LabelOf(double tick) const {
  // As many decimals as the distance of ticks has.
  const double distance = tick_ / unit_size_;
  const double size = std::max(std::abs(begin_), std::abs(end_)) / unit_size_;
  if (size >= 1e7 || distance < 1e-7) return fmt::format("{:.3g}", tick / unit_size_);
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(distance) + 1e-9)));
  const std::string label = fmt::format("{:.{}f}", tick / unit_size_, decimals);
  return label.find_first_not_of("-0.") == std::string::npos ? "0" : label;
}

std::string ChartAxis::TextOf(double value) const {
  return fmt::format("{:.4g}{}{}", value / unit_size_, unit_.empty() ? "" : " ", unit_);
}

}  // namespace forebay
