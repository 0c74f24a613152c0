// The axis of a chart: its range, round ticks, and the unit of their labels. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace forebay {

enum class Quantity : uint8_t { kNumber, kBytes, kSeconds };

// Numbers above this break a chart's arithmetic: they are drawn as if they were missing.
inline constexpr double kMostDrawn = 1e100;
bool IsDrawn(double value);

class ChartAxis {
 public:
  // From `least` to `most`, both drawn, least <= most; widened to the next ticks.
  ChartAxis(Quantity quantity, double least, double most);
  // Steps: ticks at whole numbers, and the range is not widened.
  static ChartAxis OfSteps(double first, double last);

  double begin() const { return begin_; }
  double end() const { return end_; }
  // 0 to 1.
  double ShareOf(double value) const { return (value - begin_) / (end_ - begin_); }
  std::vector<double> Ticks() const;
  // In unit().
  std::string LabelOf(double tick) const;
  // "GB", "ms", "thousand"; "" for plain numbers.
  const std::string& unit() const { return unit_; }
  // "1.234 GB": a value as a reader of a point wants it.
  std::string TextOf(double value) const;

 private:
  ChartAxis() = default;
  void SetUnit(Quantity quantity);

  double begin_ = 0;
  double end_ = 1;
  double tick_ = 1;  // distance of ticks
  double unit_size_ = 1;
  std::string unit_;
};

}  // namespace forebay
