// Charts over the steps of runs, as figures of an HTML page: SVG that needs neither a script nor
// anything from elsewhere. The page's style sheet (report_style.h) has the colours. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "forebay/train/report/chart_axis.h"
#include "forebay/train/report/thin_points.h"

namespace forebay {

// The style sheet has as many of each; lines go round.
inline constexpr size_t kNumLineColours = 8;
inline constexpr size_t kNumPartColours = 14;
// Points of a line and bars of a panel: one for two pixels of a wide screen. More are thinned.
inline constexpr size_t kMostChartPoints = 500;

struct ChartLine {
  std::string name;
  size_t colour = 0;
  bool is_dashed = false;
  std::vector<ChartPoint> points;  // x: the step, rising
};

// A value that all steps are compared with, drawn from side to side.
struct ChartLevel {
  std::string name;
  size_t colour = 0;
  double y = 0;
};

struct LineChart {
  std::string title;
  std::string unit;  // behind that of the axis: "tokens/s"; may be empty
  Quantity quantity = Quantity::kNumber;
  bool begins_at_zero = true;
  std::vector<ChartLine> lines;
  std::vector<ChartLevel> levels;
};
// A figure. Where there is nothing to draw, it says so.
std::string DrawLineChart(const LineChart& chart);

// Bars of parts on top of each other, a panel for each run.
struct StackedChart {
  std::string title;
  Quantity quantity = Quantity::kNumber;
  std::vector<std::string> part_names;  // of at most kNumPartColours
  struct Bar {
    double x = 0;               // the step, rising
    std::vector<double> parts;  // not negative; one for each name
  };
  struct Panel {
    std::string name;
    std::vector<Bar> bars;
  };
  std::vector<Panel> panels;
};
std::string DrawStackedChart(const StackedChart& chart);

}  // namespace forebay
