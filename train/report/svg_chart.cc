#include "forebay/train/report/svg_chart.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/markup.h"

namespace forebay {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 260;
constexpr double kLeft = 58;
constexpr double kRight = 26;  // half of the last label of the x axis is here
constexpr double kTop = 10;
constexpr double kBottom = 42;
// Points of a line are marked where there is room between them.
constexpr size_t kMostMarks = 80;

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  bool empty() const { return least > most; }
  void Add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

// The place of values on the page.
struct Frame {
  ChartAxis x;
  ChartAxis y;

  double AtX(double value) const { return kLeft + x.ShareOf(value) * (kWidth - kLeft - kRight); }
  double AtY(double value) const {
    return kHeight - kBottom - y.ShareOf(value) * (kHeight - kTop - kBottom);
  }
};

std::string LabelAt(double x, double y, const char* place, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, place,
                     XmlEscaped(text));
}

// Ticks with their labels; the rules of the y axis go through the whole chart.
std::string DrawAxes(const Frame& frame) {
  const double bottom = kHeight - kBottom;
  std::string svg;
  for (const double tick : frame.y.Ticks()) {
    const double y = frame.AtY(tick);
    svg += fmt::format("<path class=\"rule\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, y,
                       kWidth - kRight);
    svg += LabelAt(kLeft - 8, y + 4, "end", frame.y.LabelOf(tick));
  }
  for (const double tick : frame.x.Ticks()) {
    const double x = frame.AtX(tick);
    svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/>\n", x, bottom);
    svg += LabelAt(x, bottom + 18, "mid", frame.x.LabelOf(tick));
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, bottom,
                     kWidth - kRight);
  return svg + LabelAt((kLeft + kWidth - kRight) / 2, bottom + 35, "mid", "step");
}

std::string Svg(const std::string& label, const std::string& body) {
  return fmt::format(
      "<svg class=\"plot\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n"
      "{}</svg>\n",
      kWidth, kHeight, XmlEscaped(label), body);
}

// "Loss", "Step time (ms)", "Speed (thousand tokens/s)".
std::string Caption(const std::string& title, const std::string& axis_unit,
                    const std::string& unit) {
  const std::string both = axis_unit + (axis_unit.empty() || unit.empty() ? "" : " ") + unit;
  return both.empty() ? title : fmt::format("{} ({})", title, both);
}

std::string Figure(const std::string& caption, const std::string& body, bool is_wide = false) {
  return fmt::format("<figure{}>\n<figcaption>{}</figcaption>\n{}</figure>\n",
                     is_wide ? " class=\"wide\"" : "", XmlEscaped(caption), body);
}

std::string NothingToDraw(const std::string& title) {
  return Figure(title, "<p class=\"none\">nothing was recorded</p>\n");
}

std::string StyleOfLine(size_t colour, const char* kind) {
  return fmt::format("{} c{}", kind, colour % kNumLineColours);
}

std::string LineKey(const std::string& name, size_t colour, const char* kind) {
  return fmt::format(
      "<li><svg class=\"key\" viewBox=\"0 0 22 8\" aria-hidden=\"true\"><path class=\"{}\" "
      "d=\"M1 4H21\"/></svg>{}</li>\n",
      StyleOfLine(colour, kind), XmlEscaped(name));
}

const char* KindOf(const ChartLine& line) {
  return line.is_dashed ? "line dashed" : "line";
}

// One line needs no legend.
std::string LegendOf(const LineChart& chart) {
  if (chart.lines.size() + chart.levels.size() < 2) return "";
  std::string items;
  for (const ChartLine& line : chart.lines) items += LineKey(line.name, line.colour, KindOf(line));
  for (const ChartLevel& level : chart.levels) items += LineKey(level.name, level.colour, "level");
  return fmt::format("<ul class=\"legend\">\n{}</ul>\n", items);
}

std::vector<ChartPoint> Thinned(const std::vector<ChartPoint>& points) {
  std::vector<double> values;
  for (const ChartPoint& point : points) {
    values.push_back(IsDrawn(point.y) ? point.y : std::numeric_limits<double>::quiet_NaN());
  }
  std::vector<ChartPoint> thinned;
  for (const size_t row : ThinnedRows(values, kMostChartPoints)) {
    thinned.push_back({points[row].x, values[row]});
  }
  return thinned;
}

// A path for each piece between gaps, then the points, which say their values to a pointer.
std::string DrawLine(const ChartLine& line, const std::vector<ChartPoint>& points,
                     const Frame& frame) {
  std::string path;
  std::string marks;
  const bool are_marked = points.size() <= kMostMarks;
  bool goes_on = false;
  for (const ChartPoint& point : points) {
    if (!IsDrawn(point.y)) {
      goes_on = false;
      continue;
    }
    const double x = frame.AtX(point.x);
    const double y = frame.AtY(point.y);
    // A point alone is drawn as a line of no length, by its round ends.
    path += fmt::format("{}{:.1f} {:.1f}", goes_on ? "L" : "M", x, y);
    if (!goes_on) path += "h0";
    goes_on = true;
    marks += fmt::format(
        "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}</title></circle>\n",
        StyleOfLine(line.colour, are_marked ? "dot" : "dot faint"), x, y, are_marked ? 2.5 : 4,
        XmlEscaped(fmt::format("{}, step {}: {}", line.name, point.x, frame.y.TextOf(point.y))));
  }
  return fmt::format("<path class=\"{}\" d=\"{}\"/>\n{}", StyleOfLine(line.colour, KindOf(line)),
                     path, marks);
}

// Edges of bars: half way to the neighbours, at most half a step out at the ends.
std::vector<double> EdgesOf(const std::vector<const StackedChart::Bar*>& bars) {
  std::vector<double> edges = {bars.front()->x - 0.5};
  for (size_t i = 1; i < bars.size(); ++i) edges.push_back((bars[i - 1]->x + bars[i]->x) / 2);
  edges.push_back(bars.back()->x + 0.5);
  return edges;
}

double Height(const StackedChart::Bar& bar) {
  return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0);
}

std::string DrawBar(const StackedChart& chart, const StackedChart::Bar& bar, double begin,
                    double end, const Frame& frame) {
  const double left = frame.AtX(begin);
  // A slit between bars, where they are wide enough for one.
  const double width = frame.AtX(end) - left - (frame.AtX(end) - left > 4 ? 1 : 0);
  std::string title = fmt::format("step {}: {}", bar.x, frame.y.TextOf(Height(bar)));
  std::string rectangles;
  double below = 0;
  for (size_t part = 0; part < bar.parts.size(); ++part) {
    if (!(bar.parts[part] > 0)) continue;
    title += fmt::format("\n{}: {}", XmlEscaped(chart.part_names[part]),
                         frame.y.TextOf(bar.parts[part]));
    const double bottom = frame.AtY(below);
    below += bar.parts[part];
    const double height = bottom - frame.AtY(below);
    if (height < 0.05) continue;
    rectangles += fmt::format(
        "<rect class=\"p{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n",
        part, left, bottom - height, width, height);
  }
  return fmt::format("<g class=\"bar\"><title>{}</title>\n{}</g>\n", title, rectangles);
}

// The panel's bars as they are drawn: thinned by their heights, and without those that are too
// high for any chart.
std::vector<const StackedChart::Bar*> DrawnBars(const StackedChart::Panel& panel) {
  std::vector<const StackedChart::Bar*> bars;
  std::vector<double> heights;
  for (const StackedChart::Bar& bar : panel.bars) {
    if (!IsDrawn(Height(bar))) continue;
    bars.push_back(&bar);
    heights.push_back(Height(bar));
  }
  std::vector<const StackedChart::Bar*> drawn;
  for (const size_t row : ThinnedRows(heights, kMostChartPoints)) drawn.push_back(bars[row]);
  return drawn;
}

std::string PartLegend(const StackedChart& chart, const std::vector<bool>& is_drawn) {
  std::string items;
  for (size_t part = 0; part < chart.part_names.size(); ++part) {
    if (!is_drawn[part]) continue;
    items += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect class=\"p{}\" "
        "width=\"12\" height=\"12\" rx=\"2\"/></svg>{}</li>\n",
        part, XmlEscaped(chart.part_names[part]));
  }
  return fmt::format("<ul class=\"legend\">\n{}</ul>\n", items);
}

}  // namespace

std::string DrawLineChart(const LineChart& chart) {
  Range x;
  Range y;
  std::vector<std::vector<ChartPoint>> lines;
  for (const ChartLine& line : chart.lines) {
    lines.push_back(Thinned(line.points));
    for (const ChartPoint& point : lines.back()) {
      if (!IsDrawn(point.y)) continue;
      x.Add(point.x);
      y.Add(point.y);
    }
  }
  if (y.empty()) return NothingToDraw(chart.title);
  for (const ChartLevel& level : chart.levels) y.Add(level.y);
  if (chart.begins_at_zero) y.Add(0);
  const Frame frame = {ChartAxis::OfSteps(x.least, x.most),
                       ChartAxis(chart.quantity, y.least, y.most)};
  std::string body = DrawAxes(frame);
  for (const ChartLevel& level : chart.levels) {
    body +=
        fmt::format("<path class=\"{}\" d=\"M{:.1f} {:.1f}H{:.1f}\"><title>{}</title></path>\n",
                    StyleOfLine(level.colour, "level"), kLeft, frame.AtY(level.y), kWidth - kRight,
                    XmlEscaped(fmt::format("{}: {}", level.name, frame.y.TextOf(level.y))));
  }
  for (size_t i = 0; i < lines.size(); ++i) body += DrawLine(chart.lines[i], lines[i], frame);
  return Figure(Caption(chart.title, frame.y.unit(), chart.unit),
                Svg(chart.title + " over steps", body) + LegendOf(chart));
}

std::string DrawStackedChart(const StackedChart& chart) {
  Range x;
  Range y;
  std::vector<std::vector<const StackedChart::Bar*>> panels;
  std::vector<bool> is_drawn(chart.part_names.size());
  for (const StackedChart::Panel& panel : chart.panels) {
    panels.push_back(DrawnBars(panel));
    for (const StackedChart::Bar* bar : panels.back()) {
      x.Add(bar->x);
      y.Add(Height(*bar));
      for (size_t i = 0; i < bar->parts.size(); ++i) is_drawn[i] = is_drawn[i] || bar->parts[i] > 0;
    }
  }
  if (y.empty()) return NothingToDraw(chart.title);
  // One scale for all panels, so that runs can be compared.
  const Frame frame = {ChartAxis::OfSteps(x.least - 0.5, x.most + 0.5),
                       ChartAxis(chart.quantity, 0, y.most)};
  std::string body;
  for (size_t i = 0; i < panels.size(); ++i) {
    const std::string& name = chart.panels[i].name;
    body += "<div>\n";
    if (panels.size() > 1) body += fmt::format("<p class=\"panel\">{}</p>\n", XmlEscaped(name));
    std::string bars = DrawAxes(frame);
    if (!panels[i].empty()) {
      const std::vector<double> edges = EdgesOf(panels[i]);
      for (size_t bar = 0; bar < panels[i].size(); ++bar) {
        bars += DrawBar(chart, *panels[i][bar], edges[bar], edges[bar + 1], frame);
      }
    }
    body += Svg(fmt::format("{}: {}, over steps", chart.title, name), bars) + "</div>\n";
  }
  return Figure(
      Caption(chart.title, frame.y.unit(), ""),
      fmt::format("<div class=\"panels\">\n{}</div>\n{}", body, PartLegend(chart, is_drawn)),
      panels.size() > 1);
}

}  // namespace forebay
