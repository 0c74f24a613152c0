#include "forebay/tools/swap_bench/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/base/markup.h"
#include "forebay/tools/swap_bench/bench_table.h"

namespace forebay {
namespace {

constexpr double kWidth = 900;
constexpr double kPanelHeight = 320;
constexpr double kLeft = 70;
constexpr double kRight = 220;  // for the legend
constexpr double kTop = 40;
constexpr double kBottom = 50;
constexpr double kCell = 56;  // of a heat map
constexpr std::array<const char*, 8> kColours = {"#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2",
                                                 "#e08e0b", "#4b4b4b", "#00a5a5", "#b03a7a"};

std::string TextAt(double x, double y, const std::string& text, const char* anchor = "start",
                   int size = 12) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, size,
      anchor, XmlEscaped(text));
}

std::string Document(double width, double height, const std::string& body) {
  return fmt::format(
      "{}\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n{}</svg>\n",
      kSvgMark, width, height, body);
}

using Line = std::vector<std::pair<double, double>>;

// One diagram with axes from 0; the x axis may be logarithmic.
class Panel {
 public:
  Panel(double top, std::string title, std::string x_name, std::string y_name, bool log_x)
      : top_(top),
        title_(std::move(title)),
        x_name_(std::move(x_name)),
        y_name_(std::move(y_name)),
        log_x_(log_x) {}

  void Add(std::string name, Line line) {
    for (const auto& [x, y] : line) {
      least_x_ = std::min(least_x_, x);
      most_x_ = std::max(most_x_, x);
      most_y_ = std::max(most_y_, y);
    }
    lines_.emplace_back(std::move(name), std::move(line));
  }

  std::string Draw() const {
    if (lines_.empty()) return TextAt(kLeft, top_ + 20, title_ + ": nothing was measured");
    const double left_x =
        log_x_ ? std::pow(10, std::floor(std::log10(std::max(least_x_, 1e-9)))) : 0;
    const double right_x = std::max(most_x_, left_x + (log_x_ ? left_x : 1e-9));
    const auto at_x = [&](double x) {
      const double share = log_x_
                               ? std::log(std::max(x, left_x) / left_x) / std::log(right_x / left_x)
                               : x / right_x;
      return kLeft + share * (kWidth - kLeft - kRight);
    };
    const double bottom = top_ + kPanelHeight - kBottom;
    const double top_y = most_y_ > 0 ? most_y_ * 1.05 : 1;
    const auto at_y = [&](double y) {
      return bottom - y / top_y * (kPanelHeight - kTop - kBottom);
    };
    std::string body = TextAt(kLeft, top_ + 20, title_, "start", 15);
    for (double y = 0; y <= top_y; y += RoundStep(top_y)) {
      body += Rule(kLeft, at_y(y), kWidth - kRight, at_y(y));
      body += TextAt(kLeft - 8, at_y(y) + 4, fmt::format("{:g}", y), "end");
    }
    for (double x = left_x; x <= right_x * 1.0001; x = log_x_ ? x * 10 : x + RoundStep(right_x)) {
      body += Rule(at_x(x), bottom, at_x(x), bottom + 5);
      body += TextAt(at_x(x), bottom + 18, fmt::format("{:g}", x), "middle");
    }
    body += TextAt((kLeft + kWidth - kRight) / 2, bottom + 36, x_name_, "middle");
    body += TextAt(8, top_ + 34, y_name_);
    for (size_t i = 0; i < lines_.size(); ++i) {
      const char* const colour = kColours[i % kColours.size()];
      std::string points;
      for (const auto& [x, y] : lines_[i].second) {
        points += fmt::format("{:.1f},{:.1f} ", at_x(x), at_y(y));
      }
      body += fmt::format(
          "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"{}\"/>\n", colour,
          points);
      const double y = top_ + kTop + 10 + 18 * static_cast<double>(i);
      body +=
          fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                      kWidth - kRight + 14, y - 10, colour);
      body += TextAt(kWidth - kRight + 32, y, lines_[i].first);
    }
    return body;
  }

 private:
  static std::string Rule(double x1, double y1, double x2, double y2) {
    return fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ccc\"/>\n", x1, y1,
        x2, y2);
  }

  const double top_;
  const std::string title_;
  const std::string x_name_;
  const std::string y_name_;
  const bool log_x_;
  std::vector<std::pair<std::string, Line>> lines_;
  double least_x_ = 1e300;
  double most_x_ = 0;
  double most_y_ = 0;
};

Line BandwidthLine(const CellResult& run) {
  Line line;
  double before_s = 0;
  for (const auto& [end_s, bytes] : run.series) {
    line.emplace_back((before_s + end_s) / 2,
                      static_cast<double>(bytes) / (end_s - before_s) / 1e9);
    before_s = end_s;
  }
  return line;
}

Line LatencyLine(const CellResult& run) {
  Line line;
  int64_t seen = 0;
  for (const LatencyHistogram::Bucket& bucket : run.latency.buckets()) {
    seen += bucket.count;
    line.emplace_back(static_cast<double>(bucket.le_ns) / 1e6,
                      100 * static_cast<double>(seen) / static_cast<double>(run.latency.count()));
  }
  return line;
}

// White to blue.
std::string ColourOf(double share) {
  const auto mix = [share](int full) { return static_cast<int>(255 + (full - 255) * share); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0x1b), mix(0x6c), mix(0xa8));
}

// Bandwidth by (block, in flight) of one folder, load and engine.
using HeatMap = std::map<std::pair<int64_t, int64_t>, double>;

std::string DrawHeatMap(const HeatMap& map, const std::string& title, double top, double& height) {
  std::set<int64_t> blocks;
  std::set<int64_t> inflights;
  double most = 0;
  for (const auto& [at, gbps] : map) {
    blocks.insert(at.first);
    inflights.insert(at.second);
    most = std::max(most, gbps);
  }
  std::string body = TextAt(kLeft, top + 20, title, "start", 15);
  double x = kLeft + 20;
  for (const int64_t inflight : inflights) {
    body += TextAt(x + kCell / 2, top + kTop + 4, SizeText(inflight), "middle");
    double y = top + kTop + 10;
    for (const int64_t block : blocks) {
      if (inflight == *inflights.begin()) {
        body += TextAt(kLeft + 10, y + kCell / 2 + 4, SizeText(block), "end");
      }
      const auto found = map.find({block, inflight});
      if (found != map.end()) {
        const double share = most > 0 ? found->second / most : 0;
        body += fmt::format(
            "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" fill=\"{}\"/>\n", x,
            y, kCell - 2, kCell - 2, ColourOf(share));
        body += TextAt(x + kCell / 2, y + kCell / 2 + 4, fmt::format("{:.2f}", found->second),
                       "middle");
      }
      y += kCell;
    }
    x += kCell;
  }
  height = kTop + 20 + kCell * static_cast<double>(blocks.size()) + 20;
  return body;
}

}  // namespace

std::string ReportSvg(const BenchReport& report) {
  Panel bandwidth(0, "Bandwidth over time (median repeat)", "seconds", "GB/s", false);
  Panel latency(kPanelHeight, "Operations done within a time", "milliseconds", "%", true);
  for (const CellResult& run : report.runs) {
    const std::string name = fmt::format("{} {}", LoadName(run.key.load), run.key.device);
    bandwidth.Add(name, BandwidthLine(run));
    if (run.latency.count() > 0) latency.Add(name, LatencyLine(run));
  }
  return Document(kWidth, 2 * kPanelHeight, bandwidth.Draw() + latency.Draw());
}

std::string SweepSvg(const SweepReport& sweep) {
  std::map<std::string, HeatMap> maps;
  for (const CellResult& run : sweep.report.runs) {
    const std::string title = fmt::format("{} {}, {}: GB/s by block (down) and bytes in flight",
                                          LoadName(run.key.load), run.key.device, run.key.engine);
    maps[title][{run.key.block_bytes, run.key.inflight_bytes}] = run.gbps.median;
  }
  std::string body;
  double top = 0;
  for (const auto& [title, map] : maps) {
    double height = 0;
    body += DrawHeatMap(map, title, top, height);
    top += height;
  }
  return Document(kWidth, top, body);
}

}  // namespace forebay
